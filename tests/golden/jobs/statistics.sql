-- statistics($1 since, $2 now, $3 limit)
select s.bucket, s.entrypoint, s.priority, s.status, s.count, s.busy, s.waited, s.ran
from "holdfast_statistics" s
where $1::interval is null
   or s.bucket >= coalesce($2::timestamptz, clock_timestamp()) - $1::interval
order by s.bucket desc, s.entrypoint collate "C", s.priority, s.status::text collate "C"
limit $3::integer
