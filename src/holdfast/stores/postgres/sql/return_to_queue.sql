-- role: worker
-- Ends leases whose rows stay in the table; each leaves its log row in the same statement.
-- Promise: only rows whose token is the one given, judged under their lock. Index: primary key.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now, {patience}
),
before as materialized (
    select j.id, j.entrypoint, j.priority, j.attempts, j.recoveries, j.claimed_by, j.claimed_at,
           j.created, j.execute_after, j.lease, {place} as n
    from {table} j, clock
    where j.id = any({ids}) and {guards}
    order by j.id
    for update of j
),
changed as (
    update {table} j
    set {sets}
    from clock
    where j.id = any(array(select id from before))
    returning j.status, j.execute_after <= clock.now as due
),
logged as (
    insert into {log} (
        job_id, status, entrypoint, priority, attempt, recoveries,
        claimed_by, claimed_at, reason, traceback, created, enqueued_at, due_at, lease, fingerprint
    )
    select b.id, {target}, b.entrypoint, b.priority, b.attempts, b.recoveries, b.claimed_by,
           b.claimed_at, coalesce((:reasons::text[])[b.n], {reason}),
           (:tracebacks::text[])[b.n]::jsonb, clock.now, b.created, b.execute_after, b.lease,
           (:fingerprints::text[])[b.n]
    from before b, clock
    returning job_id
),
notified as (
    select pg_notify(:channel::text, '')
    where exists (select from changed where due and {claimable_now})
)
select array(select job_id from logged) from (select count(*) from notified) as notified
