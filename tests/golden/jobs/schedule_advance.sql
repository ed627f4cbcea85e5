-- schedule_advance($1 now, $2 id, $3 seen, $4 next_run, $5 last_run, $6 keys, $7 headers, $8 channel)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
mine as materialized (
    select s.id, s.name, s.overlap
    from "holdfast_schedules" s
    where s.id = $2::bigint and s.next_run = $3::timestamptz and not s.paused
    for update skip locked
),
moved as (
    update "holdfast_schedules" s
    set next_run = $4::timestamptz,
        last_run = coalesce($5::timestamptz, s.last_run),
        updated = clock.now
    from mine, clock
    where s.id = mine.id
    returning s.id
),
tick as materialized (
    select mine.name, t.key, t.headers, t.n
    from mine, unnest($6::text[], $7::text[]) with ordinality as t(key, headers, n)
    where mine.overlap = 'allow'
       or (t.n = 1 and not exists (
           select from "holdfast" j
           where j.held_at is null and j.entrypoint = mine.name and j.headers ->> 'schedule' = mine.name
       ))
),
new as (
    insert into "holdfast" (entrypoint, dedupe_key, headers, execute_after, created, updated)
    select tick.name, tick.key, tick.headers::jsonb, clock.now, clock.now, clock.now
    from tick, clock
    order by tick.n
    on conflict (dedupe_key) where held_at is null and dedupe_key is not null do nothing
    returning id
),
notified as (
    select pg_notify($8::text, '') where exists (select from new)
)
select moved.id, array(select id from new order by id)
from moved
where (select count(*) from notified) >= 0
