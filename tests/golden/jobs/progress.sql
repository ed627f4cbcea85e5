-- progress($1 ids)
select p.job_id, p.fraction, p.message, p.updated
from "holdfast_progress" p
where p.job_id = any($1::bigint[])
