-- statuses($1 ids)
select j.id, j.status from "holdfast" j where j.id = any($1::bigint[])
union all
select ended.job_id, ended.status
from unnest($1::bigint[]) as u(id)
cross join lateral (
    select l.job_id, l.status from "holdfast_log" l
    where l.job_id = u.id and l.status in ('successful'::"holdfast_status", 'exception'::"holdfast_status", 'canceled'::"holdfast_status", 'deleted'::"holdfast_status")
    order by l.id desc limit 1
) ended
