-- role: reader
-- The counts beside the names of the pages. Up to 10,000 jobs are counted, more are estimated.
-- Promise: bounded, whatever the backlog and its dead rows. Index: held, ready.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now,
           pg_stat_get_live_tuples(:table::text::regclass::oid) as live,
           pg_stat_get_dead_tuples(:table::text::regclass::oid) as dead
)
select c.now,
       case when c.live + c.dead > 50000 then c.live
            else (select count(*) from (
                select from {table} j where j.held_at is null limit 10001
            ) few) + (select count(*) from (
                select from {table} j where j.held_at is not null limit 10001
            ) few)
       end as live,
       (select count(*) from (select from {table} j where j.held_at is not null limit 10001) few)
           as held,
       (select count(*) from {schedules}) as schedules,
       (select count(*) from {workers} w) as workers,
       (select count(*) from {breakers}) as breakers,
       (select count(*) from {breakers} b where b.state <> 'closed') as open
from clock c
