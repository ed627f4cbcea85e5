-- retire:unclaimable($1 now, $2 limit)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
spent as materialized (
    select j."code" as key
    from "app"."orders" j
    where j."inactive" = false and j."claimed_at" is null and j."ship_at" <= (select now from clock) and coalesce(j."attempts", 0) >= 5
    limit $2::integer
    for update skip locked
)
update "app"."orders" j
set "inactive" = true
from clock
where j."code" = any(array(select key from spent))
returning j."code"
