-- role: worker
-- Ends leases as finish.sql does, and stores what the handlers returned in the same statement.
-- Promise: only rows whose token is the one given, judged under their lock; without the row there is
-- no result. Index: primary keys.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now, {patience}
),
gone as (
    delete from {table} j
    using clock
    where j.id = any({ids}) and {guards}
    returning j.id, j.entrypoint, j.priority, j.attempts, j.recoveries, j.claimed_by, j.claimed_at,
              j.created, j.execute_after, j.lease, {place} as n
),
logged as (
    insert into {log} (
        job_id, status, entrypoint, priority, attempt, recoveries,
        claimed_by, claimed_at, reason, traceback, created, enqueued_at, due_at, lease, fingerprint
    )
    select g.id, {target}, g.entrypoint, g.priority, g.attempts, g.recoveries, g.claimed_by,
           g.claimed_at, coalesce((:reasons::text[])[g.n], {reason}),
           (:tracebacks::text[])[g.n]::jsonb, clock.now, g.created, g.execute_after, g.lease,
           (:fingerprints::text[])[g.n]
    from gone g, clock
    returning job_id
),
stored as (
    insert into {results} (job_id, value, error, created, expires_at)
    select g.id, (:results::text[])[g.n], (:result_errors::text[])[g.n], clock.now,
           clock.now + (:keeps::interval[])[g.n]
    from gone g, clock
    on conflict (job_id) do update
    set value = excluded.value, error = excluded.error, created = excluded.created,
        expires_at = excluded.expires_at
    returning job_id
),
told as (
    select pg_notify(:channel::text, job_id::text) from stored where {needed}
)
select array(select job_id from logged) from (select count(*) from told) as told
