-- role: reader
-- The progress of jobs, as last reported. Index: primary key.
select p.job_id, p.fraction, p.message, p.updated
from {progress} p
where p.job_id = any(:ids::bigint[])
