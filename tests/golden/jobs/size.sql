-- size($1 entrypoints)
select j.entrypoint, j.priority, j.status, count(*)
from "holdfast" j
where $1::text[] is null or j.entrypoint = any($1::text[])
group by j.entrypoint, j.priority, j.status
order by j.entrypoint collate "C", j.priority, j.status::text collate "C"
