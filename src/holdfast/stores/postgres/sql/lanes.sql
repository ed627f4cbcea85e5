-- role: worker
-- A scan: which lanes (entrypoint, priority) there are besides the known ones, whether these
-- have rows above their floor and in a slice below it, when each has its next deferred one, and
-- where a new lane begins: below that there may be millions of dead rows, and to walk them again
-- with every claim would take longer than it takes others to claim what is above. The last
-- columns are the time it took so far, without the way to the worker, and whether the entrypoint is
-- paused, so that a claim need not ask.
-- Promise: a handful of index probes a lane, whatever the backlog. Index: ready. As in a claim, the
-- planner does not see how many there are, and so plans once. `between` means `is not null`, of
-- which the planner would expect a thousand lanes, and have the statement compiled for them.
-- Rendered three times: for jobs that no worker died with, in large fleets with a place that it takes
-- (claim_places.py), and for recovered ones (index: recovered).
with recursive clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now{takes_place}
),
found as (
    select g.entrypoint, g.bottom, (
        select j.priority from {table} j
        where j.held_at is null{narrow} and j.entrypoint = g.entrypoint
          and j.priority < g.top and j.priority > g.bottom
        order by j.priority desc limit 1
    ) as priority
    from unnest(
        (select :gap_entrypoints::text[]), (select :gap_tops::bigint[]),
        (select :gap_bottoms::bigint[])
    ) as g(entrypoint, top, bottom){admitted}
    union all
    select f.entrypoint, f.bottom, (
        select j.priority from {table} j
        where j.held_at is null{narrow} and j.entrypoint = f.entrypoint
          and j.priority < f.priority and j.priority > f.bottom
        order by j.priority desc limit 1
    )
    from found f
    where f.priority between -2147483648 and 2147483647
),
lane as (
    select entrypoint, priority, null::timestamptz as floor, null::bigint as floor_id,
           null::timestamptz as slice_floor, null::timestamptz as slice_ceiling,
           null::bigint as slice_ceiling_id
    from found
    where priority between -2147483648 and 2147483647
    union all
    select *
    from unnest(
        (select :entrypoints::text[]), (select :priorities::integer[]),
        (select :floors::timestamptz[]), (select :floor_ids::bigint[]),
        (select :slice_floors::timestamptz[]), (select :slice_ceilings::timestamptz[]),
        (select :slice_ceiling_ids::bigint[])
    ){admitted}
)
select l.entrypoint, l.priority, exists (
    select from {table} j
    where j.held_at is null{narrow} and j.entrypoint = l.entrypoint and j.priority = l.priority
      and (j.execute_after, j.id) > (l.floor, l.floor_id)
      and j.execute_after <= (select now from clock)
) as more, exists (
    select from {table} j
    where j.held_at is null{narrow} and j.entrypoint = l.entrypoint and j.priority = l.priority
      and j.execute_after > l.slice_floor
      and (j.execute_after, j.id) <= (l.slice_ceiling, l.slice_ceiling_id)
      and j.execute_after <= (select now from clock)
      and {claimable}
) as late, (
    select j.execute_after - (select now from clock)
    from {table} j
    where j.held_at is null{narrow} and j.entrypoint = l.entrypoint and j.priority = l.priority
      and j.execute_after > (select now from clock)
    order by j.execute_after limit 1
) as due, case when l.floor is null then coalesce((
    -- What was due before the first year of Python is found below every floor.
    select greatest(j.execute_after, '0001-01-01 00:00Z')
    from {table} j
    where j.held_at is null{narrow} and j.entrypoint = l.entrypoint and j.priority = l.priority
      and j.execute_after <= (select now from clock)
      and {claimable}
    order by j.execute_after, j.id limit 1
), (select now from clock)) end as start, clock_timestamp() - statement_timestamp() as took, exists (
    select from {pauses} p
    where p.name in (l.entrypoint, '')
      and (p.until is null or p.until > (select now from clock))
) as paused
from lane l{refused}
