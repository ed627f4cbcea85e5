-- role: reader
-- The newest held jobs, to be grouped by entrypoint and error. Index: held.
select j.id, j.entrypoint, left(j.last_error, 400), j.held_at
from {table} j
where j.held_at is not null
order by j.created desc, j.id desc
limit :limit::integer
