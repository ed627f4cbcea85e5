-- role: operator
-- Replaces the payload of a held job, and logs the actor. Index: primary key.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
),
changed as (
    update {table} j
    set {sets}
    from clock
    where j.id = :id::bigint and {sources}
    returning j.id, j.status, j.entrypoint, j.priority, j.attempts, j.recoveries,
              j.created, j.execute_after
)
insert into {log} (
    job_id, status, entrypoint, priority, attempt, recoveries, actor, reason, created,
    enqueued_at, due_at
)
select c.id, c.status, c.entrypoint, c.priority, c.attempts, c.recoveries,
       :actor::text, coalesce(:reason::text, {reason}), clock.now,
       c.created, c.execute_after
from changed c, clock
returning job_id
