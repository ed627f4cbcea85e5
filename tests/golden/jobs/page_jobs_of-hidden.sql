-- page_jobs_of:hidden($1 entrypoint, $2 window, $3 before, $4 status, $5 worker, $6 error, $7 key, $8 header, $9 header_value, $10 since, $11 now, $12 limit)
select j.id, j.entrypoint, j.priority, j.status, j.execute_after, j.attempts, j.recoveries, j.max_attempts, j.max_recoveries, j.dedupe_key, j.created, j.updated, j.heartbeat, j.claimed_by, j.claimed_at, j.lease, j.last_error, j.last_error_at, j.held_at
from (
    (select j.id, j.entrypoint, null::bytea as payload, j.priority, j.status, j.execute_after, j.attempts, j.recoveries, j.max_attempts, j.max_recoveries, j.dedupe_key, null::jsonb as headers, j.created, j.updated, j.heartbeat, j.claim_token, j.claimed_by, j.claimed_at, j.lease, j.last_error, j.last_error_at, j.held_at from "holdfast" j
     where j.held_at is null and j.entrypoint = $1::text
     order by j.priority desc, j.execute_after, j.id limit $2::integer)
    union all
    (select j.id, j.entrypoint, null::bytea as payload, j.priority, j.status, j.execute_after, j.attempts, j.recoveries, j.max_attempts, j.max_recoveries, j.dedupe_key, null::jsonb as headers, j.created, j.updated, j.heartbeat, j.claim_token, j.claimed_by, j.claimed_at, j.lease, j.last_error, j.last_error_at, j.held_at from "holdfast" j
     where j.held_at is not null and j.entrypoint = $1::text
     order by j.created desc, j.id desc limit $2::integer)
) j
where j.id < $3::bigint and ($4::text is null or j.status::text = $4::text)
  and ($1::text is null or j.entrypoint = $1::text)
  and ($5::text is null or j.claimed_by = $5::text)
  and ($6::text is null or position(lower($6::text) in lower(j.last_error)) > 0)
  and ($7::text is null or position($7::text in j.dedupe_key) > 0)
  and ($8::text is null or case when $9::text is null then j.headers ? $8::text
       else j.headers ->> $8::text = $9::text end)
  and ($10::interval is null
       or j.created >= coalesce($11::timestamptz, clock_timestamp()) - $10::interval)
order by j.id desc
limit $12::integer
