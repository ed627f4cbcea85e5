-- page_rates($1 width, $2 now, $3 since, $4 entrypoint)
select date_bin($1::interval, s.bucket, timestamptz '2000-01-01 00:00 UTC') as at, s.status,
       sum(s.count)::bigint, sum(s.busy)
from "holdfast_statistics" s
where s.bucket >= coalesce($2::timestamptz, clock_timestamp()) - $3::interval
  and ($4::text is null or s.entrypoint = $4::text)
group by 1, 2
