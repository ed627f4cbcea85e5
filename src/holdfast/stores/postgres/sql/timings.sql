-- role: reader
-- Sums the histograms of an entrypoint's ended leases over a stretch of time, a row for each position.
-- Index: primary key of the statistics, whose rows are as many as minutes and kinds, whatever the log.
select s.entrypoint, u.n::integer - 1 as place, sum(u.waited)::bigint, sum(u.ran)::bigint
from {statistics} s
cross join lateral unnest(s.waited, s.ran) with ordinality as u(waited, ran, n)
where s.bucket >= coalesce(:now::timestamptz, clock_timestamp()) - :since::interval
group by s.entrypoint, u.n
order by s.entrypoint collate "C", u.n
