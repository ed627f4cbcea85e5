-- role: reader
-- The newest held jobs with the log row of what held them: the mark of its error, or its reason. What
-- people did to them since does not count. Index: held, primary key of the log.
select j.id, j.entrypoint, left(j.last_error, 400), j.held_at, l.id, l.fingerprint, l.reason
from (
    select j.id, j.created, j.entrypoint, j.last_error, j.held_at
    from {table} j
    where j.held_at is not null
    order by j.created desc, j.id desc
    limit {most_held}
) j
left join lateral (
    select l.id, l.fingerprint, l.reason from {log} l
    where l.job_id = j.id and l.actor is null
    order by l.id desc
    limit 1
) l on true
order by j.created desc, j.id desc
