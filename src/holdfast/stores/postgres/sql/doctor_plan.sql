-- role: reader
-- The walk of a claim along the due jobs of one entrypoint. Only its plan is read.
-- Index: ready, from the lane's floor. The cost of any other plan grows with the backlog.
select j.id
from {table} j
where j.held_at is null
  and j.entrypoint = :entrypoint::text
  and j.priority = 0
  and (j.execute_after, j.id) > (timestamptz '2000-01-01', 0)
  and j.execute_after <= now()
  and {claimable}
order by j.execute_after, j.id
limit 100
