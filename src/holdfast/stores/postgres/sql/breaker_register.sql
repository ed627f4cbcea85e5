-- role: operator
-- Makes breakers known; those that are known stay as they are.
insert into {breakers} (name, updated)
select name, coalesce(:now::timestamptz, clock_timestamp())
from unnest(:names::text[]) as name
order by name
on conflict (name) do nothing
