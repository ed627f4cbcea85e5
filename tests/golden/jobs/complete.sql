-- complete($1 now, $2 held_ids, $3 tokens, $4 owners, $5 reasons, $6 tracebacks, $7 fingerprints)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now, set_config('lock_timeout', '100ms', true)
),
gone as (
    delete from "holdfast" j
    using clock
    where j.id = any(cast((select $2::text::bigint[]) as bigint[])) and j.claim_token = ($3::uuid[])[(cast((select $4::text::integer[]) as integer[]))[width_bucket(j.id, cast((select $2::text::bigint[]) as bigint[]))]] and coalesce(j.status = 'picked'::"holdfast_status", false)
    returning j.id, j.entrypoint, j.priority, j.attempts, j.recoveries, j.claimed_by, j.claimed_at,
              j.created, j.execute_after, j.lease, width_bucket(j.id, cast((select $2::text::bigint[]) as bigint[])) as n
),
logged as (
    insert into "holdfast_log" (
        job_id, status, entrypoint, priority, attempt, recoveries,
        claimed_by, claimed_at, reason, traceback, created, enqueued_at, due_at, lease, fingerprint
    )
    select g.id, 'successful'::"holdfast_status", g.entrypoint, g.priority, g.attempts, g.recoveries, g.claimed_by,
           g.claimed_at, coalesce(($5::text[])[g.n], null::text),
           ($6::text[])[g.n]::jsonb, clock.now, g.created, g.execute_after, g.lease,
           ($7::text[])[g.n]
    from gone g, clock
    returning job_id
)
select array(select job_id from logged)
