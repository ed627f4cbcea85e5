-- ids($1 after, $2 before, $3 entrypoints, $4 limit)
select j.id
from "holdfast" j
where j.id > $1::bigint and j.created <= $2::timestamptz
  and ($3::text[] is null or j.entrypoint = any($3::text[]))
order by j.id
limit $4::integer
