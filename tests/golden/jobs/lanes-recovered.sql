-- lanes:recovered($1 now, $2 gap_entrypoints, $3 gap_tops, $4 gap_bottoms, $5 entrypoints, $6 priorities, $7 floors, $8 floor_ids, $9 slice_floors, $10 slice_ceilings, $11 slice_ceiling_ids)
with recursive clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
found as (
    select g.entrypoint, g.bottom, (
        select j.priority from "holdfast" j
        where j.held_at is null and j.recoveries > 0 and j.entrypoint = g.entrypoint
          and j.priority < g.top and j.priority > g.bottom
        order by j.priority desc limit 1
    ) as priority
    from unnest(
        (select $2::text[]), (select $3::bigint[]),
        (select $4::bigint[])
    ) as g(entrypoint, top, bottom)
    union all
    select f.entrypoint, f.bottom, (
        select j.priority from "holdfast" j
        where j.held_at is null and j.recoveries > 0 and j.entrypoint = f.entrypoint
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
        (select $5::text[]), (select $6::integer[]),
        (select $7::timestamptz[]), (select $8::bigint[]),
        (select $9::timestamptz[]), (select $10::timestamptz[]),
        (select $11::bigint[])
    )
)
select l.entrypoint, l.priority, exists (
    select from "holdfast" j
    where j.held_at is null and j.recoveries > 0 and j.entrypoint = l.entrypoint and j.priority = l.priority
      and (j.execute_after, j.id) > (l.floor, l.floor_id)
      and j.execute_after <= (select now from clock)
) as more, exists (
    select from "holdfast" j
    where j.held_at is null and j.recoveries > 0 and j.entrypoint = l.entrypoint and j.priority = l.priority
      and j.execute_after > l.slice_floor
      and (j.execute_after, j.id) <= (l.slice_ceiling, l.slice_ceiling_id)
      and j.execute_after <= (select now from clock)
      and j.status = 'queued'::"holdfast_status" and j.recoveries > 0
) as late, (
    select j.execute_after - (select now from clock)
    from "holdfast" j
    where j.held_at is null and j.recoveries > 0 and j.entrypoint = l.entrypoint and j.priority = l.priority
      and j.execute_after > (select now from clock)
    order by j.execute_after limit 1
) as due, case when l.floor is null then coalesce((
    -- What was due before the first year of Python is found below every floor.
    select greatest(j.execute_after, '0001-01-01 00:00Z')
    from "holdfast" j
    where j.held_at is null and j.recoveries > 0 and j.entrypoint = l.entrypoint and j.priority = l.priority
      and j.execute_after <= (select now from clock)
      and j.status = 'queued'::"holdfast_status" and j.recoveries > 0
    order by j.execute_after, j.id limit 1
), (select now from clock)) end as start, clock_timestamp() - statement_timestamp() as took, exists (
    select from "holdfast_pauses" p
    where p.name in (l.entrypoint, '')
      and (p.until is null or p.until > (select now from clock))
) as paused
from lane l
