-- How long until the next row that is not due yet; one that never will be is no reason to wake.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
)
select {due} - (select now from clock)
from {table} j
where {waiting} and {due} > (select now from clock) and {due} < 'infinity' {where}
order by {due}
limit 1
