-- leased_to($1 worker)
select leased.id
from "holdfast_leases" l
cross join lateral unnest(l.ids) as u(id)
cross join lateral (
    select j.id from "holdfast" j
    where j.id = u.id and j.claim_token = l.token and coalesce(j.status = 'picked'::"holdfast_status", false)
    limit 1
) leased
where l.worker = $1::text
order by leased.id
