-- role: reader
-- How far down the next :window rows of the table reach. Index: primary key, backwards.
select min(few.id), count(*)
from (
    select j.id from {table} j
    where j.id < :before::bigint order by j.id desc limit :window::integer
) few
