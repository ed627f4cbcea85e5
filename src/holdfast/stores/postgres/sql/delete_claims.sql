-- role: worker
-- Deletes claims all of whose jobs are settled.
-- Losing this to a crash costs the next sweep one read, so it need not be fsynced. As in a claim,
-- the planner does not see how many there are, and so plans once.
with durability as materialized (
    select set_config('synchronous_commit', 'off', true)
)
delete from {leases} l
using durability
where l.token = any((select :tokens::uuid[])::uuid[])
