-- What was counted, newest bucket first. Index: primary key of the statistics.
select s.bucket, s.entrypoint, s.priority, s.status, s.count, s.busy, s.waited, s.ran
from {statistics} s
where :since::interval is null
   or s.bucket >= coalesce(:now::timestamptz, clock_timestamp()) - :since::interval
order by s.bucket desc, s.entrypoint collate "C", s.priority, s.status::text collate "C"
limit :limit::integer
