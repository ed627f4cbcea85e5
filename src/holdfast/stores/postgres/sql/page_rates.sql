-- role: reader
-- The statistics in wider buckets. Index: primary key of the statistics; log_time.
select date_bin(:width::interval, s.bucket, timestamptz '2000-01-01 00:00 UTC') as at, s.status,
       sum(s.count)::bigint, sum(s.busy)
from ({counts}) s
where s.bucket >= coalesce(:now::timestamptz, clock_timestamp()) - :since::interval
  and (:entrypoint::text is null or s.entrypoint = :entrypoint::text)
group by 1, 2
