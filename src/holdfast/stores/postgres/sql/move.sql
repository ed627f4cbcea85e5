-- role: operator
-- Queues jobs again by hand, under another entrypoint if one is given: those that wait, that are
-- held, or whose lease is stale. With :force the lease may be live. With :worker only jobs leased to
-- that worker are meant, whatever their heartbeats. The rows are locked by an earlier statement of
-- the transaction (lock.sql). The columns of a lease are left as they are: they count only while a
-- row is picked, and an operator may not write them. Index: primary key, dedupe key.
-- Promise: one outcome for each id; a holder that loses its lease is notified; a key taken by a
-- concurrent enqueue fails the whole statement, which may then be run again.
with clock as materialized (
    -- A person may act on a stale lease at once. Only the sweep gives grace after an outage.
    select coalesce(:now::timestamptz, clock_timestamp()) as now, null::timestamptz as since
),
here as materialized (
    select j.id, j.entrypoint, j.priority, j.dedupe_key, j.attempts, j.recoveries,
           j.created, j.execute_after, case when {leased} then j.lease end as lease,
           {waiting} as waiting, {leased} as leased, {held} as held,
           case when {leased} then j.claimed_by end as claimed_by,
           case when {leased} then j.claimed_at end as claimed_at,
           case when :worker::text is null then :force::boolean or {stale}
                else j.claimed_by = :worker::text end as may_end
    from {table} j
    where j.id = any(:ids::bigint[])
    order by j.id
    for update of j
),
judged as materialized (
    select h.*, case
        when h.leased then h.may_end
        when :worker::text is not null then false
        when h.waiting or h.dedupe_key is null then true
        else (
            select k.id from {table} k
            where k.dedupe_key = h.dedupe_key and k.held_at is null limit 1
        ) is null
        and not exists (
            select from here o where o.held and o.dedupe_key = h.dedupe_key and o.id < h.id
        )
    end as free
    from here h
),
moved_waiting as (
    update {table} j
    set {move_waiting}
    from clock
    where j.id = any(array(select id from judged where free and waiting))
),
moved_leased as (
    update {table} j
    set {move_leased}
    from clock
    where j.id = any(array(select id from judged where free and leased))
),
moved_held as (
    update {table} j
    set {move_held}
    from clock
    where j.id = any(array(select id from judged where free and held))
),
logged as (
    insert into {log} (
        job_id, status, entrypoint, priority, attempt, recoveries,
        claimed_by, claimed_at, actor, reason, created, enqueued_at, due_at, lease
    )
    select i.id, {target}, i.entrypoint, i.priority, i.attempts, i.recoveries,
           i.claimed_by, i.claimed_at, :actor::text, :reason::text, clock.now,
           i.created, i.execute_after, i.lease
    from judged i, clock
    where i.free
),
notified as (
    select pg_notify(:channel::text, 'cancel ' || id) from judged where free and leased
    union all
    select pg_notify(:channel::text, '') where exists (select from judged where free)
)
select id, free, leased from judged where (select count(*) from notified) >= 0
