-- How many rows wait and are claimed, and for how long the first due one has waited.
-- Promise: nothing is read of rows that are done, where an index leaves them out.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
)
select count(*) filter (where {waiting}),
       count(*) filter (where {picked}),
       (select now from clock) - min({due}) filter (
           where {waiting} and {due} <= (select now from clock)
       )
from {table} j
where {inactive} = false {where}
