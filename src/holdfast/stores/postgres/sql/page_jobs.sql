-- role: reader
-- Jobs below an id, newest first, of the next rows of the table. Index: primary key, backwards.
-- Promise: it looks at no more rows than :window.
select {listed}
from (
    select {seen} from {table} j
    where j.id < :before::bigint order by j.id desc limit :window::integer
) j
where {chosen}
order by j.id desc
limit :limit::integer
