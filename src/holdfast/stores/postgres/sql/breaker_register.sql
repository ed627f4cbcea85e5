-- role: operator
-- Creates the rows of breakers; rows that exist stay as they are.
insert into {breakers} (name, updated)
select name, coalesce(:now::timestamptz, clock_timestamp())
from unnest(:names::text[]) as name
order by name
on conflict (name) do nothing
