-- How long until the next row that is not due yet.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
)
select {due} - clock.now
from {table} j, clock
where {waiting} and {due} > clock.now {where}
order by {due}
limit 1
