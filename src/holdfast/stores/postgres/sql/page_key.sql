-- role: reader
-- The active job that has a dedupe key. Index: dedupe key.
select j.id from {table} j where j.dedupe_key = :key::text and j.held_at is null limit 1
