-- role: worker
-- Writes the bookkeeping of claims anew that were deleted by hand while jobs were leased under them, so
-- that sweeps and limits see these jobs again. One slice of the table. Index: primary keys, one
-- probe a leased job.
with clock as materialized (
    select set_config('synchronous_commit', 'off', true)
),
slice as materialized (
    select j.id, j.claim_token, j.claimed_by, j.claimed_at, j.lease
    from {table} j
    where j.id > :after::bigint
    order by j.id
    limit :limit::integer
),
lost as materialized (
    select s.*
    from slice s
    where s.claim_token is not null
      and {on_duty}
      and not coalesce((
          select s.id = any(known.ids) from {leases} known where known.token = s.claim_token
      ), false)
),
restored as (
    insert into {leases} as l (token, worker, claimed_at, lease, ids)
    select s.claim_token, min(s.claimed_by), min(s.claimed_at), min(s.lease),
           array_agg(s.id order by s.id)
    from lost s
    group by s.claim_token
    on conflict (token) do update set ids = l.ids || excluded.ids
)
select (select max(id) from slice), (select count(*) from lost)
from clock
