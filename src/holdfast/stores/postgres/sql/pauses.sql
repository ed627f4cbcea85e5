-- role: reader
-- The pauses that hold now, and for how many seconds. The table has a row for each pause.
select p.name, p.until, p.actor, p.reason, p.created,
       date_part('epoch', p.until - coalesce(:now::timestamptz, clock_timestamp())) as seconds_left
from {pauses} p
where p.until is null or p.until > coalesce(:now::timestamptz, clock_timestamp())
order by p.name collate "C"
