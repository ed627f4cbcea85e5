-- role: reader
-- Log rows of given minutes, newest first. Index: log_time.
select {log_columns}
from unnest((select :minutes::timestamptz[])) as m(minute)
cross join lateral (
    select {log_columns} from {log} l
    where l.created >= m.minute and l.created < m.minute + interval '1 minute'
      and (l.created, l.id) < (:before::timestamptz, :before_id::bigint)
      and (:status::text is null or l.status::text = :status::text)
      and (:entrypoint::text is null or l.entrypoint = :entrypoint::text)
      and (:worker::text is null or l.claimed_by = :worker::text)
      and (not :by_person::boolean or l.actor is not null)
      and (:error::text is null
           or position(lower(:error::text) in lower(l.traceback ->> 'exception_type')) > 0
           or position(lower(:error::text) in lower(l.traceback ->> 'exception_message')) > 0
           or position(lower(:error::text) in lower(l.reason)) > 0)
    order by l.created desc, l.id desc
    limit :limit::integer
) l
order by l.created desc, l.id desc
limit :limit::integer
