-- role: worker
-- The leases that a claim took whose reply was lost, so that they can be released.
-- Index: primary keys, one probe a lease.
select leased.id, l.token
from {leases} l
cross join lateral unnest(l.ids) as u(id)
cross join lateral (
    select j.id from {table} j where j.id = u.id and j.claim_token = l.token limit 1
) leased
where l.token = any(:tokens::uuid[])
