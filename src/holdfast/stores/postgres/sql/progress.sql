-- role: reader
-- How far jobs are, as they last said. Index: primary key.
select p.job_id, p.fraction, p.message, p.updated
from {progress} p
where p.job_id = any(:ids::bigint[])
