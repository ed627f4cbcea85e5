-- running($1 entrypoint)
select count(*)
from "holdfast_leases" l
cross join lateral unnest(l.ids) as u(id)
cross join lateral (
    select from "holdfast" j
    where j.id = u.id and j.claim_token = l.token and j.entrypoint = $1::text
    limit 1
) leased
where l.entrypoint is null or l.entrypoint = $1::text
