-- role: reader
-- The statistics, with log rows that are not in them yet, newest bucket first. Those rows have no
-- histograms before they are counted. Index: primary key of the statistics; log_time.
select x.bucket, x.entrypoint, x.priority, x.status, sum(x.count)::bigint, sum(x.busy),
       max(x.waited), max(x.ran)
from (
    (select s.bucket, s.entrypoint, s.priority, s.status, s.count, s.busy, s.waited, s.ran
     from {statistics} s
     where :since::interval is null
        or s.bucket >= coalesce(:now::timestamptz, clock_timestamp()) - :since::interval
     order by s.bucket desc, s.entrypoint collate "C", s.priority, s.status::text collate "C"
     limit :limit::integer)
    union all
    select u.bucket, u.entrypoint, u.priority, u.status, count(*), sum(u.busy), '{{}}', '{{}}'
    from ({uncounted}) u
    where :since::interval is null
       or u.bucket >= coalesce(:now::timestamptz, clock_timestamp()) - :since::interval
    group by u.bucket, u.entrypoint, u.priority, u.status
) x
group by x.bucket, x.entrypoint, x.priority, x.status
order by x.bucket desc, x.entrypoint collate "C", x.priority, x.status::text collate "C"
limit :limit::integer
