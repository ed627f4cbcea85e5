-- list_held:hidden($1 entrypoint, $2 error, $3 since, $4 now, $5 older_than, $6 limit)
select j.id, j.entrypoint, null::bytea as payload, j.priority, j.status, j.execute_after, j.attempts, j.recoveries, j.max_attempts, j.max_recoveries, j.dedupe_key, null::jsonb as headers, j.created, j.updated, j.heartbeat, j.claim_token, j.claimed_by, j.claimed_at, j.lease, j.last_error, j.last_error_at, j.held_at from "holdfast" j
where j.held_at is not null
  and ($1::text is null or j.entrypoint = $1::text)
  and ($2::text is null or position(lower($2::text) in lower(j.last_error)) > 0)
  and ($3::interval is null
       or j.held_at >= coalesce($4::timestamptz, clock_timestamp()) - $3::interval)
  and ($5::interval is null
       or j.held_at < coalesce($4::timestamptz, clock_timestamp()) - $5::interval)
order by j.created desc, j.id desc
limit $6::integer
