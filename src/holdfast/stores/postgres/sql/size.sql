-- role: reader
-- How many jobs of each kind are in the queue table: a count of the whole table.
select j.entrypoint, j.priority, j.status, count(*)
from {table} j
where :entrypoints::text[] is null or j.entrypoint = any(:entrypoints::text[])
group by j.entrypoint, j.priority, j.status
order by j.entrypoint collate "C", j.priority, j.status::text collate "C"
