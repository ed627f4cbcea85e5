-- role: worker
-- Ends leases whose rows leave the table; each leaves its log row in the same statement.
-- Promise: only rows whose token is the one given, judged under their lock. Index: primary key.
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
)
select array(select job_id from logged)
