-- role: reader
-- The same for each entrypoint. Index: primary key of the statistics; log_time.
select s.entrypoint, date_bin(:width::interval, s.bucket, timestamptz '2000-01-01 00:00 UTC') as at,
       s.status, sum(s.count)::bigint, sum(s.busy)
from ({counts}) s
where s.bucket >= coalesce(:now::timestamptz, clock_timestamp()) - :since::interval
group by 1, 2, 3
limit 20000
