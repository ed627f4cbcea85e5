-- schedule_remove($1 name)
delete from "holdfast_schedules" s where s.name = $1::text returning s.id
