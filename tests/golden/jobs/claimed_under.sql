-- claimed_under($1 tokens)
select leased.id, l.token
from "holdfast_leases" l
cross join lateral unnest(l.ids) as u(id)
cross join lateral (
    select j.id from "holdfast" j where j.id = u.id and j.claim_token = l.token limit 1
) leased
where l.token = any($1::uuid[])
