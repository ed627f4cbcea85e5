-- page_samples($1 job_ids, $2 log_ids)
select l.job_id, left(l.traceback ->> 'exception_type', 200),
       left(l.traceback ->> 'exception_message', 400), right(l.traceback ->> 'traceback', 4000)
from unnest($1::bigint[], $2::bigint[]) as s(job_id, id)
cross join lateral (
    select l.job_id, l.traceback from "holdfast_log" l where l.job_id = s.job_id and l.id = s.id limit 1
) l
