-- retire:last_retry($1 now, $2 held_ids, $3 tokens, $4 owners, $5 max_attempts, $6 errors, $7 reasons, $8 tracebacks, $9 fingerprints, $10 channel)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now, set_config('lock_timeout', '100ms', true)
),
before as materialized (
    select j.id, j.entrypoint, j.priority, j.attempts, j.recoveries, j.claimed_by, j.claimed_at,
           j.created, j.execute_after, j.lease, width_bucket(j.id, cast((select $2::text::bigint[]) as bigint[])) as n
    from "holdfast" j, clock
    where j.id = any(cast((select $2::text::bigint[]) as bigint[])) and j.claim_token = ($3::uuid[])[(cast((select $4::text::integer[]) as integer[]))[width_bucket(j.id, cast((select $2::text::bigint[]) as bigint[]))]] and j.attempts + 1 >= coalesce(j.max_attempts, ($5::integer[])[width_bucket(j.id, cast((select $2::text::bigint[]) as bigint[]))], 2147483647) and coalesce(j.status = 'picked'::"holdfast_status", false)
    order by j.id
    for update of j
),
changed as (
    update "holdfast" j
    set status = 'failed'::"holdfast_status", attempts = j.attempts + 1, last_error = ($6::text[])[width_bucket(j.id, cast((select $2::text::bigint[]) as bigint[]))], last_error_at = clock.now, claim_token = null, claimed_by = null, claimed_at = null, heartbeat = null, lease = null, held_at = clock.now, updated = clock.now
    from clock
    where j.id = any(array(select id from before))
    returning j.status, j.execute_after <= clock.now as due
),
logged as (
    insert into "holdfast_log" (
        job_id, status, entrypoint, priority, attempt, recoveries,
        claimed_by, claimed_at, reason, traceback, created, enqueued_at, due_at, lease, fingerprint
    )
    select b.id, 'failed'::"holdfast_status", b.entrypoint, b.priority, b.attempts, b.recoveries, b.claimed_by,
           b.claimed_at, coalesce(($7::text[])[b.n], 'max_attempts'),
           ($8::text[])[b.n]::jsonb, clock.now, b.created, b.execute_after, b.lease,
           ($9::text[])[b.n]
    from before b, clock
    returning job_id
),
notified as (
    select pg_notify($10::text, '')
    where exists (select from changed where due and status = 'queued'::"holdfast_status")
)
select array(select job_id from logged) from (select count(*) from notified) as notified
