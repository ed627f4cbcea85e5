-- role: reader
-- Live jobs of one entrypoint below an id, newest first, where they are no more than :window.
-- Index: ready, held.
select {listed}
from (
    (select {seen} from {table} j
     where j.held_at is null and j.entrypoint = :entrypoint::text
     order by j.priority desc, j.execute_after, j.id limit :window::integer)
    union all
    (select {seen} from {table} j
     where j.held_at is not null and j.entrypoint = :entrypoint::text
     order by j.created desc, j.id desc limit :window::integer)
) j
where j.id < :before::bigint and {chosen}
order by j.id desc
limit :limit::integer
