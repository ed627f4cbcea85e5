-- depth($1 now)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
)
select count(*) filter (where j."inactive" = false and j."claimed_at" is null),
       count(*) filter (where j."inactive" = false and j."claimed_at" is not null),
       (select now from clock) - min(j."remind_at") filter (
           where j."inactive" = false and j."claimed_at" is null and j."remind_at" <= (select now from clock) and j."remind_at" > '-infinity'
       )
from "email_snoozes" j
where j."inactive" = false
