-- next_due($1 now)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
)
select j."ship_at" - (select now from clock)
from "app"."orders" j
where j."inactive" = false and j."claimed_at" is null and j."ship_at" > (select now from clock) and j."ship_at" < 'infinity'
order by j."ship_at"
limit 1
