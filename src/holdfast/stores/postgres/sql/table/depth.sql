-- How many rows wait and are claimed, and for how long the first due one has waited; what has been
-- due since ever says nothing of that.
-- Promise: nothing is read of rows that are done, where an index leaves them out.
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
