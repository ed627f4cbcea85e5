-- page_log($1 minutes, $2 before, $3 before_id, $4 status, $5 entrypoint, $6 worker, $7 by_person, $8 error, $9 limit)
select l.id, l.job_id, l.status, l.entrypoint, l.priority, l.attempt, l.recoveries, l.claimed_by, l.claimed_at, l.actor, l.reason, l.traceback, l.created, l.enqueued_at, l.due_at, l.lease, l.fingerprint
from unnest((select $1::timestamptz[])) as m(minute)
cross join lateral (
    select l.id, l.job_id, l.status, l.entrypoint, l.priority, l.attempt, l.recoveries, l.claimed_by, l.claimed_at, l.actor, l.reason, l.traceback, l.created, l.enqueued_at, l.due_at, l.lease, l.fingerprint from "holdfast_log" l
    where l.created >= m.minute and l.created < m.minute + interval '1 minute'
      and (l.created, l.id) < ($2::timestamptz, $3::bigint)
      and ($4::text is null or l.status::text = $4::text)
      and ($5::text is null or l.entrypoint = $5::text)
      and ($6::text is null or l.claimed_by = $6::text)
      and (not $7::boolean or l.actor is not null)
      and ($8::text is null
           or position(lower($8::text) in lower(l.traceback ->> 'exception_type')) > 0
           or position(lower($8::text) in lower(l.traceback ->> 'exception_message')) > 0
           or position(lower($8::text) in lower(l.reason)) > 0)
    order by l.created desc, l.id desc
    limit $9::integer
) l
order by l.created desc, l.id desc
limit $9::integer
