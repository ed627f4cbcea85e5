-- role: worker
-- The clock that decides.
select coalesce(:now::timestamptz, clock_timestamp())
