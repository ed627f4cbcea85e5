-- role: reader
-- Waiting times as histograms, summed in wider buckets: a row for each position that was reached.
-- Index: primary key of the statistics.
select date_bin(:width::interval, s.bucket, timestamptz '2000-01-01 00:00 UTC') as at,
       u.n::integer - 1, sum(u.waited)::bigint
from {statistics} s
cross join lateral unnest(s.waited) with ordinality as u(waited, n)
where s.bucket >= coalesce(:now::timestamptz, clock_timestamp()) - :since::interval
  and u.waited > 0
group by 1, 2
