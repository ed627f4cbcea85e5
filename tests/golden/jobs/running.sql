-- running($1 most, $2 entrypoint)
select count(*),
       case when count(*) >= $1::bigint then set_config('synchronous_commit', 'off', true) end
from "holdfast_leases" l
cross join lateral unnest(l.ids) as u(id)
cross join lateral (
    select from "holdfast" j
    where j.id = u.id and j.claim_token = l.token and coalesce(j.status = 'picked'::"holdfast_status", false)
      and j.entrypoint = $2::text
    limit 1
) leased
where l.entrypoint is null or l.entrypoint = $2::text
