-- results($1 ids, $2 now)
select r.job_id, r.value, r.error
from "holdfast_results" r
where r.job_id = any($1::bigint[])
  and r.expires_at > coalesce($2::timestamptz, clock_timestamp())
