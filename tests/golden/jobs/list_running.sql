-- list_running($1 limit)
select j.id, j.entrypoint, j.payload, j.priority, j.status, j.execute_after, j.attempts, j.recoveries, j.max_attempts, j.max_recoveries, j.dedupe_key, j.headers, j.created, j.updated, j.heartbeat, j.claim_token, j.claimed_by, j.claimed_at, j.lease, j.last_error, j.last_error_at, j.held_at
from "holdfast_leases" l
cross join lateral unnest(l.ids) as u(id)
cross join lateral (
    select j.id, j.entrypoint, j.payload, j.priority, j.status, j.execute_after, j.attempts, j.recoveries, j.max_attempts, j.max_recoveries, j.dedupe_key, j.headers, j.created, j.updated, j.heartbeat, j.claim_token, j.claimed_by, j.claimed_at, j.lease, j.last_error, j.last_error_at, j.held_at from "holdfast" j
    where j.id = u.id and j.claim_token = l.token and coalesce(j.status = 'picked'::"holdfast_status", false)
    limit 1
) j
order by j.claimed_at, j.id
limit $1::integer
