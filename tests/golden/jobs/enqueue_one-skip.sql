-- enqueue_one:skip($1 now, $2 entrypoint, $3 payload, $4 priority, $5 instant, $6 delay, $7 dedupe_key, $8 headers, $9 max_attempts, $10 max_recoveries, $11 soon, $12 key, $13 channel)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now, set_config('enqueued.into', 'holdfast', true)
),
new as (
    insert into "holdfast" (
        entrypoint, payload, priority, execute_after, dedupe_key, headers,
        max_attempts, max_recoveries, created, updated
    )
    select $2::text, $3::bytea, $4::integer,
           coalesce($5::timestamptz, now + coalesce($6::interval, interval '0')),
           $7::text, $8::text::jsonb, $9::integer,
           $10::integer, now, now
    from clock
    on conflict (dedupe_key) where held_at is null and dedupe_key is not null do nothing
    returning id, execute_after
),
reply as (
    select case when id is not null then array[id] end as ids,
           case when id is null then array[$7::text] end as skipped,
           execute_after <= now + $11::interval as is_soon, now
    from clock left join new on true
),
keyed as (
    insert into "holdfast_enqueues" (key, created, ids, skipped)
    select $12::uuid, now, ids, skipped from reply where $12::uuid is not null
)
select ids, skipped
from reply
where case
    when $13::text is null then true
    when is_soon is not true then true
    when case when $13::text in (select pg_listening_channels()) then true when pg_try_advisory_lock(hashtextextended('listeners of ' || $13::text, 0)) then not pg_advisory_unlock(hashtextextended('listeners of ' || $13::text, 0)) else true end then pg_notify(coalesce((
        select 'worker_' || left(encode(sha256(convert_to($13::text || ' ' || w.id, 'UTF8')), 'hex'), 32)
        from (
            select w.id from "holdfast_workers" w
            where w.entrypoints && array[$2::text]
            order by random() offset 0
        ) w
        where case when pg_try_advisory_lock(hashtextextended('listeners of ' || $13::text || ' ' || w.id, 0)) then not pg_advisory_unlock(hashtextextended('listeners of ' || $13::text || ' ' || w.id, 0)) else true end
        limit 1
    ), $13::text), '') is not null
    else true
end
