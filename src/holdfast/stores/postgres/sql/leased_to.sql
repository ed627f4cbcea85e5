-- role: operator
-- The jobs that are leased to a worker. Index: primary keys, one probe a lease.
select leased.id
from {leases} l
cross join lateral unnest(l.ids) as u(id)
cross join lateral (
    select j.id from {table} j
    where j.id = u.id and j.claim_token = l.token and {leased}
    limit 1
) leased
where l.worker = :worker::text
order by leased.id
