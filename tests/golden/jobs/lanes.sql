-- lanes($1 entrypoints, $2 now)
with recursive lane as (
    select e.entrypoint, (
        select j.priority from "holdfast" j
        where j.held_at is null and j.entrypoint = e.entrypoint
        order by j.priority desc limit 1
    ) as priority
    from unnest($1::text[]) as e(entrypoint)
    union all
    select l.entrypoint, (
        select j.priority from "holdfast" j
        where j.held_at is null and j.entrypoint = l.entrypoint and j.priority < l.priority
        order by j.priority desc limit 1
    )
    from lane l
    where l.priority is not null
),
clock as materialized (
    select coalesce($2::timestamptz, clock_timestamp()) as now
)
select l.entrypoint, l.priority, (
    select j.execute_after - (select now from clock)
    from "holdfast" j
    where j.held_at is null and j.entrypoint = l.entrypoint and j.priority = l.priority
      and j.execute_after > (select now from clock)
    order by j.execute_after limit 1
)
from lane l
where l.priority is not null
