-- restore_claims($1 after, $2 limit, $3 holder, $4 now)
with clock as materialized (
    select set_config('synchronous_commit', 'off', true)
),
slice as materialized (
    select j.id, j.claim_token, j.claimed_by, j.claimed_at, j.lease
    from "holdfast" j
    where j.id > $1::bigint
    order by j.id
    limit $2::integer
),
lost as materialized (
    select s.*
    from slice s
    where s.claim_token is not null
      and ($3::uuid is null or exists (select from "holdfast_upkeep" duty where duty.token = $3::uuid and duty.expires > coalesce($4::timestamptz, clock_timestamp())))
      and not coalesce((
          select s.id = any(known.ids) from "holdfast_leases" known where known.token = s.claim_token
      ), false)
),
restored as (
    insert into "holdfast_leases" as l (token, worker, claimed_at, lease, ids)
    select s.claim_token, min(s.claimed_by), min(s.claimed_at), min(s.lease),
           array_agg(s.id order by s.id)
    from lost s
    group by s.claim_token
    on conflict (token) do update set ids = l.ids || excluded.ids
)
select (select max(id) from slice), (select count(*) from lost)
from clock
