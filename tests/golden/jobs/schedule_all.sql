-- schedule_all()
select s.id, s.name, s.expression, s.timezone, s.misfire, s.overlap, s.paused, s.next_run, s.last_run, s.created, s.updated from "holdfast_schedules" s order by s.name collate "C"
