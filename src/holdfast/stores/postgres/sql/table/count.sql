-- How many rows wait, are claimed, are retired, are done.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
)
select count(*) filter (where {waiting} and {due} <= clock.now),
       count(*) filter (where {waiting} and {due} > clock.now),
       count(*) filter (where {picked}),
       count(*) filter (where {inactive} and {failed}),
       count(*) filter (where {inactive} and not ({failed}))
from {table} j, clock
