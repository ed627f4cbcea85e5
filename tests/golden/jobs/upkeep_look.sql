-- upkeep_look($1 now, $2 grace)
with recursive clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
served as (
    select distinct e.name
    from "holdfast_workers" w
    cross join lateral unnest(w.entrypoints) as e(name)
    where w.heartbeat >= (select now from clock) - interval '1 minute'
      and not exists (
          select from "holdfast_pauses" p
          where p.name in (e.name, '')
            and (p.until is null or p.until > (select now from clock))
      )
),
lane as (
    select s.name as entrypoint, (
        select j.priority from "holdfast" j
        where j.held_at is null and j.entrypoint = s.name
        order by j.priority desc limit 1
    ) as priority
    from served s
    union all
    select l.entrypoint, (
        select j.priority from "holdfast" j
        where j.held_at is null and j.entrypoint = l.entrypoint and j.priority < l.priority
        order by j.priority desc limit 1
    )
    from lane l
    where l.priority is not null
)
select l.entrypoint, coalesce(bool_or((
    select true
    from "holdfast" j
    where j.held_at is null and j.entrypoint = l.entrypoint and j.priority = l.priority
      and j.execute_after <= (select now from clock) - $2::interval
      and j.status = 'queued'::"holdfast_status" and coalesce(j.recoveries = 0, false)
    order by j.execute_after, j.id limit 1
)), false), coalesce(bool_or((
    select true
    from "holdfast" j
    where j.held_at is null and j.recoveries > 0 and j.entrypoint = l.entrypoint
      and j.priority = l.priority
      and j.execute_after <= (select now from clock) - $2::interval
      and j.status = 'queued'::"holdfast_status"
    order by j.execute_after, j.id limit 1
)), false), min((
    select j.execute_after - (select now from clock)
    from "holdfast" j
    where j.held_at is null and j.entrypoint = l.entrypoint and j.priority = l.priority
      and j.execute_after > (select now from clock)
    order by j.execute_after limit 1
))
from lane l
where l.priority is not null
group by l.entrypoint
