-- Enqueues jobs in the order given. Index: primary key, dedupe key.
-- Promise: all or none, or with a conflict clause all but the duplicates; ids rise in the order
-- given; at most one NOTIFY, and only for work that is claimable now or so soon that a sleeping
-- worker might not look before.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
),
new as (
    insert into {table} (
        entrypoint, payload, priority, execute_after, dedupe_key, headers,
        max_attempts, max_recoveries, created, updated
    )
    select i.entrypoint, i.payload, i.priority,
           coalesce(i.instant, clock.now + coalesce(i.delay, interval '0')),
           i.dedupe_key, i.headers::jsonb, i.max_attempts, i.max_recoveries, clock.now, clock.now
    from unnest(
        :entrypoints::text[], :payloads::bytea[], :priorities::integer[],
        :instants::timestamptz[], :delays::interval[], :dedupe_keys::text[], :headers::text[],
        :max_attempts::integer[], :max_recoveries::integer[]
    ) with ordinality as i(
        entrypoint, payload, priority, instant, delay, dedupe_key, headers,
        max_attempts, max_recoveries, n
    ), clock
    order by i.n
    {on_conflict}
    returning id, dedupe_key, execute_after
),
told as (
    select pg_notify(:channel::text, '')
    where :channel::text is not null
      and exists (
          select from new, clock where new.execute_after <= clock.now + :soon::interval
      )
)
select id, dedupe_key from new where (select count(*) from told) >= 0 order by id
