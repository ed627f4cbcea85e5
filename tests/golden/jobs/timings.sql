-- timings($1 now, $2 since)
select s.entrypoint, u.n::integer - 1 as place, sum(u.waited)::bigint, sum(u.ran)::bigint
from "holdfast_statistics" s
cross join lateral unnest(s.waited, s.ran) with ordinality as u(waited, ran, n)
where s.bucket >= coalesce($1::timestamptz, clock_timestamp()) - $2::interval
group by s.entrypoint, u.n
order by s.entrypoint collate "C", u.n
