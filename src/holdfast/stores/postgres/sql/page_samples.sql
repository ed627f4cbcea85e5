-- role: reader
-- The errors of given log rows, and the end of their tracebacks. Index: primary key of the log.
select l.job_id, left(l.traceback ->> 'exception_type', 200),
       left(l.traceback ->> 'exception_message', 400), right(l.traceback ->> 'traceback', 4000)
from unnest(:job_ids::bigint[], :log_ids::bigint[]) as s(job_id, id)
cross join lateral (
    select l.job_id, l.traceback from {log} l where l.job_id = s.job_id and l.id = s.id limit 1
) l
