-- list_progress($1 limit)
select p.job_id, p.fraction, p.message, p.updated
from "holdfast_progress" p
join "holdfast" j on j.id = p.job_id
where coalesce(j.status = 'picked'::"holdfast_status", false)
order by p.updated desc
limit $1::integer
