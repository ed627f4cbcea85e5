-- How many rows wait and are claimed, and for how long the first due one has waited. A row that is
-- due since minus infinity does not count for the latter.
-- Promise: rows that are done are not read, where an index leaves them out.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
)
select count(*) filter (where {waiting}),
       count(*) filter (where {picked}),
       (select now from clock) - min({due}) filter (
           where {waiting} and {due} <= (select now from clock) and {due} > '-infinity'
       )
from {table} j
where {inactive} = false {where}
