-- page_waits($1 width, $2 now, $3 since)
select date_bin($1::interval, s.bucket, timestamptz '2000-01-01 00:00 UTC') as at,
       u.n::integer - 1, sum(u.waited)::bigint
from "holdfast_statistics" s
cross join lateral unnest(s.waited) with ordinality as u(waited, n)
where s.bucket >= coalesce($2::timestamptz, clock_timestamp()) - $3::interval
  and u.waited > 0
group by 1, 2
