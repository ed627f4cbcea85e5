-- role: worker
-- The schedules whose next tick has come.
select {schedule_columns}
from {schedules} s
where s.name = any(:names::text[]) and not s.paused and s.next_run <= :at::timestamptz
order by s.next_run, s.id
