-- role: producer
-- The status of each job, also after its end. Index: primary keys.
-- One probe a job: order and limit keep the planner, which may think a job has a thousand log rows,
-- from scanning the log.
select j.id, j.status from {table} j where j.id = any(:ids::bigint[])
union all
select ended.job_id, ended.status
from unnest(:ids::bigint[]) as u(id)
cross join lateral (
    select l.job_id, l.status from {log} l
    where l.job_id = u.id and l.status in {final}
    order by l.id desc limit 1
) ended
