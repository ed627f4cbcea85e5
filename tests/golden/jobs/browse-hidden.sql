-- browse:hidden($1 status, $2 entrypoint, $3 limit)
select j.id, j.entrypoint, null::bytea as payload, j.priority, j.status, j.execute_after, j.attempts, j.recoveries, j.max_attempts, j.max_recoveries, j.dedupe_key, null::jsonb as headers, j.created, j.updated, j.heartbeat, j.claim_token, j.claimed_by, j.claimed_at, j.lease, j.last_error, j.last_error_at, j.held_at from "holdfast" j
where ($1::text is null or j.status::text = $1::text)
  and ($2::text is null or j.entrypoint = $2::text)
order by j.id desc
limit $3::integer
