-- doctor_plan($1 entrypoint)
select j.id
from "holdfast" j
where j.held_at is null
  and j.entrypoint = $1::text
  and j.priority = 0
  and (j.execute_after, j.id) > (timestamptz '2000-01-01', 0)
  and j.execute_after <= now()
  and j.status = 'queued'::"holdfast_status"
order by j.execute_after, j.id
limit 100
