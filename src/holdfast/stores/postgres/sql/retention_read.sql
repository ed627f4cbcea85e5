-- role: reader
-- Reads how long log rows are kept. Index: primary key.
select succeeded, others from {retention}
