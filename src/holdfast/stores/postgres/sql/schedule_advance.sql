-- role: worker
-- Turns due ticks into jobs and moves the schedule on, unless another scheduler did.
-- Promise: one job a tick whatever the number of schedulers, because the tick is taken by changing
-- next_run from the value it was computed from. Index: primary keys, ready, dedupe key.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
),
mine as materialized (
    select s.id, s.name, s.overlap
    from {schedules} s
    where s.id = :id::bigint and s.next_run = :seen::timestamptz and not s.paused
    for update skip locked
),
moved as (
    update {schedules} s
    set next_run = :next_run::timestamptz,
        last_run = coalesce(:last_run::timestamptz, s.last_run),
        updated = clock.now
    from mine, clock
    where s.id = mine.id
    returning s.id
),
tick as materialized (
    select mine.name, t.key, t.headers, t.n
    from mine, unnest(:keys::text[], :headers::text[]) with ordinality as t(key, headers, n)
    where mine.overlap = 'allow'
       or (t.n = 1 and not exists (
           select from {table} j
           where j.held_at is null and j.entrypoint = mine.name and j.headers ->> 'schedule' = mine.name
       ))
),
new as (
    insert into {table} (entrypoint, dedupe_key, headers, execute_after, created, updated)
    select tick.name, tick.key, tick.headers::jsonb, clock.now, clock.now, clock.now
    from tick, clock
    order by tick.n
    {on_conflict}
    returning id
),
notified as (
    select pg_notify(:channel::text, '') where exists (select from new)
)
select moved.id, array(select id from new order by id)
from moved
where (select count(*) from notified) >= 0
