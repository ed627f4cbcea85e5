-- role: worker
-- Reads the payloads of leases that are still owned. Index: primary key.
-- A claim leaves out large payloads. They are fetched when their jobs are about to run.
select j.id, j.payload
from {table} j
where j.id = any({ids}) and {guards}
