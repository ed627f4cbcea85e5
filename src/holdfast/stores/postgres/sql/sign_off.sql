-- role: worker
-- A worker has left. Index: primary key.
delete from {workers} w where w.id = :id::text
