-- explain_first($1 entrypoint)
select j.id from "holdfast" j
where j.held_at is null and j.entrypoint = $1::text and j.status = 'queued'::"holdfast_status"
order by j.priority desc, j.execute_after, j.id
limit 1
