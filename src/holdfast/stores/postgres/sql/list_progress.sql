-- role: reader
-- The progress of leased jobs, the latest report first. The table holds a row for each such job, and
-- few others.
select p.job_id, p.fraction, p.message, p.updated
from {progress} p
join {table} j on j.id = p.job_id
where {leased}
order by p.updated desc
limit :limit::integer
