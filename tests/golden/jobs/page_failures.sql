-- page_failures($1 statuses, $2 now, $3 since, $4 limit)
select f.status, f.entrypoint, f.fingerprint,
       date_bin('1 hour', f.created, timestamptz '2000-01-01 00:00 UTC') as hour,
       count(*)::integer, min(f.created), max(f.created),
       (array_agg(f.job_id order by f.created desc))[1], (array_agg(f.id order by f.created desc))[1]
from unnest((select $1::"holdfast_status"[])) as s(status)
cross join lateral (
    select l.status, l.entrypoint, l.fingerprint, l.created, l.job_id, l.id
    from "holdfast_log" l
    where l.status = s.status and l.fingerprint is not null
      and l.created >= coalesce($2::timestamptz, clock_timestamp()) - $3::interval
    order by l.created desc
    limit $4::integer
) f
group by 1, 2, 3, 4
