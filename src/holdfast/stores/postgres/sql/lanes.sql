-- A look around: which lanes (entrypoint, priority) there are besides the known ones, whether these
-- have rows above their floor and in a slice below it, and when each has its next deferred one.
-- Promise: a handful of index probes a lane, whatever the backlog. Index: ready. As in a claim, the
-- planner does not see how many there are, and so plans once.
with recursive clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
),
found as (
    select g.entrypoint, g.bottom, (
        select j.priority from {table} j
        where j.held_at is null and j.entrypoint = g.entrypoint
          and j.priority < g.top and j.priority > g.bottom
        order by j.priority desc limit 1
    ) as priority
    from unnest(
        (select :gap_entrypoints::text[]), (select :gap_tops::bigint[]),
        (select :gap_bottoms::bigint[])
    ) as g(entrypoint, top, bottom)
    union all
    select f.entrypoint, f.bottom, (
        select j.priority from {table} j
        where j.held_at is null and j.entrypoint = f.entrypoint
          and j.priority < f.priority and j.priority > f.bottom
        order by j.priority desc limit 1
    )
    from found f
    where f.priority is not null
),
lane as (
    select entrypoint, priority, null::timestamptz as floor, null::bigint as floor_id,
           null::timestamptz as slice_floor, null::timestamptz as slice_ceiling
    from found
    where priority is not null
    union all
    select *
    from unnest(
        (select :entrypoints::text[]), (select :priorities::integer[]),
        (select :floors::timestamptz[]), (select :floor_ids::bigint[]),
        (select :slice_floors::timestamptz[]), (select :slice_ceilings::timestamptz[])
    )
)
select l.entrypoint, l.priority, exists (
    select from {table} j
    where j.held_at is null and j.entrypoint = l.entrypoint and j.priority = l.priority
      and (j.execute_after, j.id) > (l.floor, l.floor_id)
      and j.execute_after <= (select now from clock)
) as more, exists (
    select from {table} j
    where j.held_at is null and j.entrypoint = l.entrypoint and j.priority = l.priority
      and j.execute_after > l.slice_floor and j.execute_after <= l.slice_ceiling
      and j.execute_after <= (select now from clock)
      and {claimable}
) as stray, (
    select j.execute_after - (select now from clock)
    from {table} j
    where j.held_at is null and j.entrypoint = l.entrypoint and j.priority = l.priority
      and j.execute_after > (select now from clock)
    order by j.execute_after limit 1
) as due
from lane l
