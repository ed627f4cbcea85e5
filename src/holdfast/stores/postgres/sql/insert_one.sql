-- role: producer
-- Enqueues one job: the commonest call, and a plan without arrays has less to set up.
-- Promise: that of insert.sql, with the same reply. Index: primary key, dedupe key.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now, {marked}
),
new as (
    insert into {table} (
        entrypoint, payload, priority, execute_after, dedupe_key, headers,
        max_attempts, max_recoveries, created, updated
    )
    select :entrypoint::text, :payload::bytea, :priority::integer,
           coalesce(:instant::timestamptz, now + coalesce(:delay::interval, interval '0')),
           :dedupe_key::text, :headers::text::jsonb, :max_attempts::integer,
           :max_recoveries::integer, now, now
    from clock
    {on_conflict}
    returning id, execute_after
),
reply as (
    select case when id is not null then array[id] end as ids,
           case when id is null then array[:dedupe_key::text] end as skipped,
           execute_after <= now + :soon::interval as is_soon, now
    from clock left join new on true
),
keyed as (
    insert into {enqueues} (key, created, ids, skipped)
    select :key::uuid, now, ids, skipped from reply where :key::uuid is not null
)
select ids, skipped
from reply
-- True in every case: the row is the reply, whether a worker is notified or not.
where case
    when :channel::text is null then true
    when is_soon is not true then true
    when {needed} then pg_notify(coalesce((
        select {own_channel}
        from (
            select w.id from {workers} w
            where w.entrypoints && array[:entrypoint::text]
            order by random() offset 0
        ) w
        where {sleeps}
        limit 1
    ), :channel::text), '') is not null
    else true
end
