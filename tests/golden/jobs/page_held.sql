-- page_held()
select j.id, j.entrypoint, left(j.last_error, 400), j.held_at, l.id, l.fingerprint, l.reason
from (
    select j.id, j.created, j.entrypoint, j.last_error, j.held_at
    from "holdfast" j
    where j.held_at is not null
    order by j.created desc, j.id desc
    limit 5000
) j
left join lateral (
    select l.id, l.fingerprint, l.reason from "holdfast_log" l
    where l.job_id = j.id and l.actor is null
    order by l.id desc
    limit 1
) l on true
order by j.created desc, j.id desc
