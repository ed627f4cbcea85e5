-- enqueue:raise($1 now, $2 entrypoint, $3 entrypoints, $4 payloads, $5 priorities, $6 instants, $7 delays, $8 dedupe_keys, $9 headers, $10 max_attempts, $11 max_recoveries, $12 key, $13 channel, $14 soon)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now, set_config('enqueued.into', 'holdfast', true)
),
new as (
    insert into "holdfast" (
        entrypoint, payload, priority, execute_after, dedupe_key, headers,
        max_attempts, max_recoveries, created, updated
    )
    select coalesce(i.entrypoint, $2::text), i.payload, coalesce(i.priority, 0),
           coalesce(i.instant, (select now from clock) + coalesce(i.delay, interval '0')),
           i.dedupe_key, i.headers::jsonb, i.max_attempts, i.max_recoveries,
           (select now from clock), (select now from clock)
    from unnest(
        $3::text[], $4::bytea[], $5::integer[],
        $6::timestamptz[], $7::interval[], $8::text[], $9::text[],
        $10::integer[], $11::integer[]
    ) as i(
        entrypoint, payload, priority, instant, delay, dedupe_key, headers,
        max_attempts, max_recoveries
    )

    returning id, dedupe_key, execute_after
),
reply as (
    select array_agg(id) as ids, null::text[] as skipped from new
),
keyed as (
    insert into "holdfast_enqueues" (key, created, ids, skipped)
    select $12::uuid, clock.now, reply.ids, reply.skipped
    from reply, clock
    where $12::uuid is not null
),
notified as (
    select pg_notify(coalesce(chosen.own, $13::text), '')
    from (
        -- `offset 0` keeps the planner from looking for workers before it knows that it must.
        select true as wanted
        where case
            when $13::text is null then false
            when not exists (
                select from new, clock where new.execute_after <= clock.now + $14::interval
            ) then false
            else case when $13::text in (select pg_listening_channels()) then true when pg_try_advisory_lock(hashtextextended('listeners of ' || $13::text, 0)) then not pg_advisory_unlock(hashtextextended('listeners of ' || $13::text, 0)) else true end
        end
        offset 0
    ) n
    left join lateral (
        select 'worker_' || left(encode(sha256(convert_to($13::text || ' ' || w.id, 'UTF8')), 'hex'), 32) as own
        from (
            select w.id, sum(w.room) over (order by w.dice) - w.room as before
            from (
                select w.id, greatest(w.concurrency - w.running, 1) as room, random() as dice
                from "holdfast_workers" w
                where n.wanted and w.entrypoints && ($3::text[] || $2::text)
            ) w
            where case when pg_try_advisory_lock(hashtextextended('listeners of ' || $13::text || ' ' || w.id, 0)) then not pg_advisory_unlock(hashtextextended('listeners of ' || $13::text || ' ' || w.id, 0)) else true end
        ) w
        where w.before < (select count(*) from new)
        order by w.before
        limit 200
    ) chosen on true
)
select ids, skipped from reply where (select count(*) from notified) >= 0
