-- delete_ended_claims($1 now, $2 holder)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now,
           set_config('synchronous_commit', 'off', true)
),
ended as (
    select l.token
    from "holdfast_leases" l
    where l.claimed_at + l.lease <= (select now from clock)
      and ($2::uuid is null or exists (select from "holdfast_upkeep" duty where duty.token = $2::uuid and duty.expires > coalesce($1::timestamptz, clock_timestamp())))
      and 0 = (
          select count(*)
          from unnest(l.ids) as u(id)
          cross join lateral (
              select from "holdfast" j
              where j.id = u.id and j.claim_token = l.token and coalesce(j.status = 'picked'::"holdfast_status", false)
              limit 1
          ) leased
      )
    for update of l skip locked
)
delete from "holdfast_leases" l where l.token = any(array(select token from ended))
