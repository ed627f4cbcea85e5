-- Time until the next row that is not due yet. A row that is due at infinity does not count.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
)
select {due} - (select now from clock)
from {table} j
where {waiting} and {due} > (select now from clock) and {due} < 'infinity' {where}
order by {due}
limit 1
