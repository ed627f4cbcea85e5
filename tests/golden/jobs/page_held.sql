-- page_held($1 limit)
select j.id, j.entrypoint, left(j.last_error, 400), j.held_at
from "holdfast" j
where j.held_at is not null
order by j.created desc, j.id desc
limit $1::integer
