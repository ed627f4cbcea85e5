-- page_log_minutes($1 before, $2 status, $3 entrypoint)
select few.bucket, sum(few.count)::bigint
from (
    select s.bucket, s.entrypoint, s.status, s.count from "holdfast_statistics" s
    where s.bucket <= $1::timestamptz
    order by s.bucket desc
    limit 50000
) few
where ($2::text is null or few.status::text = $2::text)
  and ($3::text is null or few.entrypoint = $3::text)
group by few.bucket
order by few.bucket desc
limit 60
