-- get($1 ids)
select j.id, j.entrypoint, j.payload, j.priority, j.status, j.execute_after, j.attempts, j.recoveries, j.max_attempts, j.max_recoveries, j.dedupe_key, j.headers, j.created, j.updated, j.heartbeat, j.claim_token, j.claimed_by, j.claimed_at, j.lease, j.last_error, j.last_error_at, j.held_at from "holdfast" j where j.id = any($1::bigint[]) order by j.id
