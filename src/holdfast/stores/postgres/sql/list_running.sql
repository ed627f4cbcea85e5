-- role: reader
-- The leased jobs, longest first.
-- Promise: its cost is that of the leases, whatever the backlog. Index: primary keys, one probe a
-- lease: the limit keeps the planner from joining with a scan of the backlog.
select {columns}
from {leases} l
cross join lateral unnest(l.ids) as u(id)
cross join lateral (
    select {seen} from {table} j
    where j.id = u.id and j.claim_token = l.token and {leased}
    limit 1
) j
order by j.claimed_at, j.id
limit :limit::integer
