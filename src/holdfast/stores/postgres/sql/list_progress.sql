-- role: reader
-- How far the leased jobs are that said so, the last to say so first. The table holds a row for each
-- such job, and few others.
select p.job_id, p.fraction, p.message, p.updated
from {progress} p
join {table} j on j.id = p.job_id
where {leased}
order by p.updated desc
limit :limit::integer
