-- role: reader
-- The job of an entrypoint that is claimed next, or the first of those that are due later.
-- Index: ready, one ordered walk for each of the highest priorities.
select j.id from {table} j
where j.held_at is null and j.entrypoint = :entrypoint::text and {claimable}
order by j.priority desc, j.execute_after, j.id
limit 1
