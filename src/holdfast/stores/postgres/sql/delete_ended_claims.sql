-- role: worker
-- Deletes old claims none of whose jobs is leased under them any more. Index: primary key.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now,
           set_config('synchronous_commit', 'off', true)
),
ended as (
    select l.token
    from {leases} l
    where l.claimed_at + l.lease <= (select now from clock)
      and {on_duty}
      and 0 = (
          select count(*)
          from unnest(l.ids) as u(id)
          cross join lateral (
              select from {table} j
              where j.id = u.id and j.claim_token = l.token and {leased}
              limit 1
          ) leased
      )
    for update of l skip locked
)
delete from {leases} l where l.token = any(array(select token from ended))
