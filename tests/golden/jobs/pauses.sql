-- pauses($1 now)
select p.name, p.until, p.actor, p.reason, p.created,
       date_part('epoch', p.until - coalesce($1::timestamptz, clock_timestamp())) as seconds_left
from "holdfast_pauses" p
where p.until is null or p.until > coalesce($1::timestamptz, clock_timestamp())
order by p.name collate "C"
