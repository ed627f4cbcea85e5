-- role: producer
-- The stored results of jobs that have not expired. Index: primary key.
select r.job_id, r.value, r.error
from {results} r
where r.job_id = any(:ids::bigint[])
  and r.expires_at > coalesce(:now::timestamptz, clock_timestamp())
