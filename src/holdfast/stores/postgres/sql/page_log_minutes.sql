-- role: reader
-- The minutes that have log rows of a kind, newest first, and how many. They are where to look in
-- the log, which has no index of kinds. Index: primary key of the statistics, backwards; log_time.
select few.bucket, sum(few.count)::bigint
from (
    (select s.bucket, s.entrypoint, s.status, s.count from {statistics} s
     where s.bucket <= :before::timestamptz
     order by s.bucket desc
     limit 50000)
    union all
    select u.bucket, u.entrypoint, u.status, 1 from ({uncounted}) u
    where u.bucket <= :before::timestamptz
) few
where (:status::text is null or few.status::text = :status::text)
  and (:entrypoint::text is null or few.entrypoint = :entrypoint::text)
group by few.bucket
order by few.bucket desc
limit 60
