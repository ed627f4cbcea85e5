-- How many jobs of an entrypoint with a fleet-wide limit are leased now.
-- Promise: exact under the entrypoint's lock, which the caller holds. Index: primary key, one probe
-- a lease: the limit keeps the planner from joining with a scan of the backlog.
select count(*)
from {leases} l
cross join lateral unnest(l.ids) as u(id)
cross join lateral (
    select from {table} j where j.id = u.id and j.claim_token = l.token limit 1
) leased
where l.entrypoint = :entrypoint::text
