-- role: producer
-- Enqueues jobs in the order given. Index: primary key, dedupe key.
-- Promise: all or none, or with a conflict clause all but the duplicates; never twice under one key,
-- also when the jobs are long done; ids rise in the order given, which is the order unnest has; at
-- most one NOTIFY for a worker, and only for work that is claimable now or so soon that a sleeping
-- worker might not look before, and only when a listener has said that it needs one, by sharing a
-- lock. As many sleeping workers as have room for the jobs are notified, chosen at random, each on its
-- own channel; where none is found the message is for all.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now, {marked}
),
new as (
    insert into {table} (
        entrypoint, payload, priority, execute_after, dedupe_key, headers,
        max_attempts, max_recoveries, created, updated
    )
    select coalesce(i.entrypoint, :entrypoint::text), i.payload, coalesce(i.priority, 0),
           coalesce(i.instant, (select now from clock) + coalesce(i.delay, interval '0')),
           i.dedupe_key, i.headers::jsonb, i.max_attempts, i.max_recoveries,
           (select now from clock), (select now from clock)
    from unnest(
        :entrypoints::text[], :payloads::bytea[], :priorities::integer[],
        :instants::timestamptz[], :delays::interval[], :dedupe_keys::text[], :headers::text[],
        :max_attempts::integer[], :max_recoveries::integer[]
    ) as i(
        entrypoint, payload, priority, instant, delay, dedupe_key, headers,
        max_attempts, max_recoveries
    )
    {on_conflict}
    returning id, dedupe_key, execute_after
),
reply as (
    select array_agg(id) as ids, {skipped} as skipped from new
),
keyed as (
    insert into {enqueues} (key, created, ids, skipped)
    select :key::uuid, clock.now, reply.ids, reply.skipped
    from reply, clock
    where :key::uuid is not null
),
notified as (
    select pg_notify(coalesce(chosen.own, :channel::text), '')
    from (
        -- `offset 0` keeps the planner from looking for workers before it knows that it must.
        select true as wanted
        where case
            when :channel::text is null then false
            when not exists (
                select from new, clock where new.execute_after <= clock.now + :soon::interval
            ) then false
            else {needed}
        end
        offset 0
    ) n
    left join lateral (
        select {own_channel} as own
        from (
            select w.id, sum(w.room) over (order by w.dice) - w.room as before
            from (
                select w.id, greatest(w.concurrency - w.running, 1) as room, random() as dice
                from {workers} w
                where n.wanted and w.entrypoints && (:entrypoints::text[] || :entrypoint::text)
            ) w
            where {sleeps}
        ) w
        where w.before < (select count(*) from new)
        order by w.before
        limit {most_woken}
    ) chosen on true
)
select ids, skipped from reply where (select count(*) from notified) >= 0
