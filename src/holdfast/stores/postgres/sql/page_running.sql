-- role: reader
-- Leased jobs by worker and entrypoint: how many, since when the longest, and when the first lease
-- ends. Promise: at most 5,000 probes, one a lease. Index: primary keys.
select u.worker, j.entrypoint, count(*), min(j.claimed_at), min(j.heartbeat + j.lease)
from (
    select l.worker, l.token, i.id from {leases} l cross join lateral unnest(l.ids) as i(id)
    limit 5000
) u
cross join lateral (
    select j.entrypoint, j.claimed_at, j.heartbeat, j.lease from {table} j
    where j.id = u.id and j.claim_token = u.token and {leased}
    limit 1
) j
group by u.worker, j.entrypoint
