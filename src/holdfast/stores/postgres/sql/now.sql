-- role: worker
-- The database's clock, which decides what is due.
select coalesce(:now::timestamptz, clock_timestamp())
