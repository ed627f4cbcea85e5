-- page_reach($1 before, $2 window)
select min(few.id), count(*)
from (
    select j.id from "holdfast" j
    where j.id < $1::bigint order by j.id desc limit $2::integer
) few
