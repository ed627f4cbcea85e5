-- role: worker
-- Deletes the row of a worker that has ended. Index: primary key.
delete from {workers} w where w.id = :id::text
