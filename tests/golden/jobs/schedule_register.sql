-- schedule_register($1 now, $2 name, $3 expression, $4 timezone, $5 misfire, $6 overlap, $7 first)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
)
insert into "holdfast_schedules" as s (
    name, expression, timezone, misfire, overlap, next_run, created, updated
)
select $2::text, $3::text, $4::text, $5::text, $6::text,
       $7::timestamptz, clock.now, clock.now
from clock
on conflict (name) do update
set expression = excluded.expression,
    timezone = excluded.timezone,
    misfire = excluded.misfire,
    overlap = excluded.overlap,
    next_run = case
        when (s.expression, s.timezone) = (excluded.expression, excluded.timezone) then s.next_run
        else excluded.next_run
    end,
    updated = case
        when (s.expression, s.timezone, s.misfire, s.overlap)
           = (excluded.expression, excluded.timezone, excluded.misfire, excluded.overlap)
        then s.updated
        else excluded.updated
    end
returning s.id, s.name, s.expression, s.timezone, s.misfire, s.overlap, s.paused, s.next_run, s.last_run, s.created, s.updated
