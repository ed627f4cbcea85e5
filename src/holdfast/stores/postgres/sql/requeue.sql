-- role: operator
-- Sends held jobs back to the queue, as far as their dedupe keys are free. Index: primary key,
-- dedupe key, one probe a job: written as `exists` it could become a join with the backlog.
-- The rows are locked by an earlier statement of the transaction (lock.sql).
-- Promise: one outcome for each id; a key taken by a concurrent enqueue fails the whole statement,
-- which may then be run again.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
),
here as materialized (
    select j.id, j.entrypoint, j.priority, j.dedupe_key, j.attempts, j.recoveries,
           j.created, j.execute_after, {held} as held
    from {table} j
    where j.id = any(:ids::bigint[])
    order by j.id
    for update of j
),
judged as materialized (
    select h.*, h.held and (
        h.dedupe_key is null
        or (
            (
                select k.id from {table} k
                where k.dedupe_key = h.dedupe_key and k.held_at is null limit 1
            ) is null
            and not exists (
                select from here o where o.held and o.dedupe_key = h.dedupe_key and o.id < h.id
            )
        )
    ) as free
    from here h
),
changed as (
    update {table} j
    set {sets}, max_attempts = coalesce(:max_attempts::integer, j.max_attempts)
    from clock
    where j.id = any(array(select id from judged where free))
    returning j.id
),
logged as (
    insert into {log} (
        job_id, status, entrypoint, priority, attempt, recoveries, actor, reason, created,
        enqueued_at, due_at
    )
    select i.id, {target}, i.entrypoint, i.priority, i.attempts, i.recoveries,
           :actor::text, coalesce(:reason::text, {reason}), clock.now,
           i.created, i.execute_after
    from judged i, clock
    where i.free
),
notified as (
    select pg_notify(:channel::text, '') where exists (select from changed)
)
select id, held, free from judged where (select count(*) from notified) >= 0
