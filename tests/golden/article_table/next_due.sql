-- next_due($1 now)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
)
select j."remind_at" - (select now from clock)
from "email_snoozes" j
where j."inactive" = false and j."claimed_at" is null and j."remind_at" > (select now from clock) and j."remind_at" < 'infinity'
order by j."remind_at"
limit 1
