-- role: reader
-- Leases that ended with an error, by outcome, entrypoint, the mark of the error, and hour: how many, the
-- first, the last, and the log row of the last. Of each outcome the newest rows count. Index: log_failures.
select f.status, f.entrypoint, f.fingerprint,
       date_bin('1 hour', f.created, timestamptz '2000-01-01 00:00 UTC') as hour,
       count(*)::integer, min(f.created), max(f.created),
       (array_agg(f.job_id order by f.created desc))[1], (array_agg(f.id order by f.created desc))[1]
from unnest((select :statuses::{status}[])) as s(status)
cross join lateral (
    select l.status, l.entrypoint, l.fingerprint, l.created, l.job_id, l.id
    from {log} l
    where l.status = s.status and l.fingerprint is not null
      and l.created >= coalesce(:now::timestamptz, clock_timestamp()) - :since::interval
    order by l.created desc
    limit :limit::integer
) f
group by 1, 2, 3, 4
