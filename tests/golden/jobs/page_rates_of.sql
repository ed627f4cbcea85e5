-- page_rates_of($1 width, $2 now, $3 since)
select s.entrypoint, date_bin($1::interval, s.bucket, timestamptz '2000-01-01 00:00 UTC') as at,
       s.status, sum(s.count)::bigint, sum(s.busy)
from "holdfast_statistics" s
where s.bucket >= coalesce($2::timestamptz, clock_timestamp()) - $3::interval
group by 1, 2, 3
limit 20000
