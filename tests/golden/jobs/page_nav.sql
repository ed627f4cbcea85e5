-- page_nav($1 now, $2 table)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now,
           pg_stat_get_live_tuples($2::text::regclass::oid) as live,
           pg_stat_get_dead_tuples($2::text::regclass::oid) as dead
)
select c.now,
       case when c.live + c.dead > 50000 then c.live
            else (select count(*) from (
                select from "holdfast" j where j.held_at is null limit 10001
            ) few) + (select count(*) from (
                select from "holdfast" j where j.held_at is not null limit 10001
            ) few)
       end as live,
       (select count(*) from (select from "holdfast" j where j.held_at is not null limit 10001) few)
           as held,
       (select count(*) from "holdfast_schedules") as schedules,
       (select count(*) from "holdfast_workers" w) as workers,
       (select count(*) from "holdfast_breakers") as breakers,
       (select count(*) from "holdfast_breakers" b where b.state <> 'closed') as open
from clock c
