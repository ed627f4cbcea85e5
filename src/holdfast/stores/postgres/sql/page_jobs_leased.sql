-- role: reader
-- Leased jobs below an id, newest first. Promise: at most :window probes, one a lease.
-- Index: primary keys.
select {listed}
from (
    select l.token, i.id from {leases} l cross join lateral unnest(l.ids) as i(id)
    limit :window::integer
) u
cross join lateral (
    select {seen} from {table} j
    where j.id = u.id and j.claim_token = u.token and {leased}
    limit 1
) j
where j.id < coalesce(:before::bigint, 9223372036854775807) and {chosen}
order by j.id desc
limit :limit::integer
