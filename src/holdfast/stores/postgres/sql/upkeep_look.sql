-- role: worker
-- Entrypoints with jobs that are overdue although workers serve them, separately for jobs that a
-- worker died with, and when the next deferred job is due. Workers that sleep do not look themselves.
-- Promise: a handful of index probes a lane, and the rows in flight at its head. Index: ready.
with recursive clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
),
served as (
    select distinct e.name
    from {workers} w
    cross join lateral unnest(w.entrypoints) as e(name)
    where w.heartbeat >= (select now from clock) - interval '1 minute'
      and not exists (
          select from {pauses} p
          where p.name in (e.name, '')
            and (p.until is null or p.until > (select now from clock))
      )
),
lane as (
    select s.name as entrypoint, (
        select j.priority from {table} j
        where j.held_at is null and j.entrypoint = s.name
        order by j.priority desc limit 1
    ) as priority
    from served s
    union all
    select l.entrypoint, (
        select j.priority from {table} j
        where j.held_at is null and j.entrypoint = l.entrypoint and j.priority < l.priority
        order by j.priority desc limit 1
    )
    from lane l
    where l.priority is not null
)
select l.entrypoint, coalesce(bool_or((
    select true
    from {table} j
    where j.held_at is null and j.entrypoint = l.entrypoint and j.priority = l.priority
      and j.execute_after <= (select now from clock) - :grace::interval
      and {claimable} and {unharmed}
    order by j.execute_after, j.id limit 1
)), false), coalesce(bool_or((
    select true
    from {table} j
    where j.held_at is null and {recovered} and j.entrypoint = l.entrypoint
      and j.priority = l.priority
      and j.execute_after <= (select now from clock) - :grace::interval
      and {claimable}
    order by j.execute_after, j.id limit 1
)), false), min((
    select j.execute_after - (select now from clock)
    from {table} j
    where j.held_at is null and j.entrypoint = l.entrypoint and j.priority = l.priority
      and j.execute_after > (select now from clock)
    order by j.execute_after limit 1
))
from lane l
where l.priority is not null
group by l.entrypoint
