-- breaker_register($1 now, $2 names)
insert into "holdfast_breakers" (name, updated)
select name, coalesce($1::timestamptz, clock_timestamp())
from unnest($2::text[]) as name
order by name
on conflict (name) do nothing
