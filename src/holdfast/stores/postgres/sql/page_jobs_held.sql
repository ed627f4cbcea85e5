-- role: reader
-- Held jobs below an id, newest first, among the newest :window. Index: held.
select {listed}
from (
    select {seen} from {table} j
    where j.held_at is not null order by j.created desc, j.id desc limit :window::integer
) j
where j.id < :before::bigint and {chosen}
order by j.id desc
limit :limit::integer
