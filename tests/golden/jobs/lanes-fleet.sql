-- lanes:fleet($1 now, $2 heavy, $3 places, $4 channel, $5 place_of, $6 door, $7 gap_entrypoints, $8 gap_tops, $9 gap_bottoms, $10 entrypoints, $11 priorities, $12 floors, $13 floor_ids, $14 slice_floors, $15 slice_ceilings, $16 slice_ceiling_ids)
with recursive clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now,
           case when $2::boolean then exists (
               select from generate_series(1, $3::integer) as place
               where pg_try_advisory_xact_lock(hashtextextended('claims of ' || $4::text || ' ' || $5::text, place + 1000 * (extract(epoch from coalesce($1::timestamptz, clock_timestamp()))::bigint / 5)))
           ) else pg_try_advisory_xact_lock_shared(hashtextextended('claims of ' || $4::text || ' ' || $5::text, $6::integer + 1000 * (extract(epoch from coalesce($1::timestamptz, clock_timestamp()))::bigint / 5))) and exists (
               select from generate_series(-3, -1) as place
               where pg_try_advisory_xact_lock(hashtextextended('claims of ' || $4::text || ' ' || $5::text, place + 1000 * (extract(epoch from coalesce($1::timestamptz, clock_timestamp()))::bigint / 5)))
           ) end as admitted
),
found as (
    select g.entrypoint, g.bottom, (
        select j.priority from "holdfast" j
        where j.held_at is null and j.entrypoint = g.entrypoint
          and j.priority < g.top and j.priority > g.bottom
        order by j.priority desc limit 1
    ) as priority
    from unnest(
        (select $7::text[]), (select $8::bigint[]),
        (select $9::bigint[])
    ) as g(entrypoint, top, bottom) where (select admitted from clock)
    union all
    select f.entrypoint, f.bottom, (
        select j.priority from "holdfast" j
        where j.held_at is null and j.entrypoint = f.entrypoint
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
        (select $10::text[]), (select $11::integer[]),
        (select $12::timestamptz[]), (select $13::bigint[]),
        (select $14::timestamptz[]), (select $15::timestamptz[]),
        (select $16::bigint[])
    ) where (select admitted from clock)
)
select l.entrypoint, l.priority, exists (
    select from "holdfast" j
    where j.held_at is null and j.entrypoint = l.entrypoint and j.priority = l.priority
      and (j.execute_after, j.id) > (l.floor, l.floor_id)
      and j.execute_after <= (select now from clock)
) as more, exists (
    select from "holdfast" j
    where j.held_at is null and j.entrypoint = l.entrypoint and j.priority = l.priority
      and j.execute_after > l.slice_floor
      and (j.execute_after, j.id) <= (l.slice_ceiling, l.slice_ceiling_id)
      and j.execute_after <= (select now from clock)
      and j.status = 'queued'::"holdfast_status" and coalesce(j.recoveries = 0, false)
) as late, (
    select j.execute_after - (select now from clock)
    from "holdfast" j
    where j.held_at is null and j.entrypoint = l.entrypoint and j.priority = l.priority
      and j.execute_after > (select now from clock)
    order by j.execute_after limit 1
) as due, case when l.floor is null then coalesce((
    -- What was due before the first year of Python is found below every floor.
    select greatest(j.execute_after, '0001-01-01 00:00Z')
    from "holdfast" j
    where j.held_at is null and j.entrypoint = l.entrypoint and j.priority = l.priority
      and j.execute_after <= (select now from clock)
      and j.status = 'queued'::"holdfast_status" and coalesce(j.recoveries = 0, false)
    order by j.execute_after, j.id limit 1
), (select now from clock)) end as start, clock_timestamp() - statement_timestamp() as took, exists (
    select from "holdfast_pauses" p
    where p.name in (l.entrypoint, '')
      and (p.until is null or p.until > (select now from clock))
) as paused
from lane l
union all
select null, null, null, null, null, null, null, null from clock where not admitted
