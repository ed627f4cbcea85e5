-- now($1 now)
select coalesce($1::timestamptz, clock_timestamp())
