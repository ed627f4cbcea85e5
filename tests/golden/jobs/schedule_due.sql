-- schedule_due($1 names, $2 at)
select s.id, s.name, s.expression, s.timezone, s.misfire, s.overlap, s.paused, s.next_run, s.last_run, s.created, s.updated
from "holdfast_schedules" s
where s.name = any($1::text[]) and not s.paused and s.next_run <= $2::timestamptz
order by s.next_run, s.id
