-- enqueue:skip($1 now, $2 entrypoints, $3 payloads, $4 priorities, $5 instants, $6 delays, $7 dedupe_keys, $8 headers, $9 max_attempts, $10 max_recoveries, $11 channel, $12 soon)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
new as (
    insert into "holdfast" (
        entrypoint, payload, priority, execute_after, dedupe_key, headers,
        max_attempts, max_recoveries, created, updated
    )
    select i.entrypoint, i.payload, i.priority,
           coalesce(i.instant, clock.now + coalesce(i.delay, interval '0')),
           i.dedupe_key, i.headers::jsonb, i.max_attempts, i.max_recoveries, clock.now, clock.now
    from unnest(
        $2::text[], $3::bytea[], $4::integer[],
        $5::timestamptz[], $6::interval[], $7::text[], $8::text[],
        $9::integer[], $10::integer[]
    ) with ordinality as i(
        entrypoint, payload, priority, instant, delay, dedupe_key, headers,
        max_attempts, max_recoveries, n
    ), clock
    order by i.n
    on conflict (dedupe_key) where held_at is null and dedupe_key is not null do nothing
    returning id, dedupe_key, execute_after
),
told as (
    select pg_notify($11::text, '')
    where $11::text is not null
      and exists (
          select from new, clock where new.execute_after <= clock.now + $12::interval
      )
)
select id, dedupe_key from new where (select count(*) from told) >= 0 order by id
