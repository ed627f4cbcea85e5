-- role: worker
-- How many jobs of an entrypoint with a fleet-wide limit are leased now.
-- Promise: exact under the entrypoint's lock, which the caller holds; leases that were taken
-- without a limit, by workers of an older version, count as well. Index: primary key, one probe a
-- lease: the limit keeps the planner from joining with a scan of the backlog.
-- Where the limit is reached nothing but the lock was written, which need not be fsynced.
select count(*),
       case when count(*) >= :most::bigint then set_config('synchronous_commit', 'off', true) end
from {leases} l
cross join lateral unnest(l.ids) as u(id)
cross join lateral (
    select from {table} j
    where j.id = u.id and j.claim_token = l.token and {leased}
      and j.entrypoint = :entrypoint::text
    limit 1
) leased
where l.entrypoint is null or l.entrypoint = :entrypoint::text
