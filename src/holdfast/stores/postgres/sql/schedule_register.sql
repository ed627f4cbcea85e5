-- role: worker
-- Creates a schedule, or updates the columns that differ. A new expression begins with a new tick.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
)
insert into {schedules} as s (
    name, expression, timezone, misfire, overlap, next_run, created, updated
)
select :name::text, :expression::text, :timezone::text, :misfire::text, :overlap::text,
       :first::timestamptz, clock.now, clock.now
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
returning {schedule_columns}
