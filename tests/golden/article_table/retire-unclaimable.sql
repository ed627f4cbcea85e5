-- retire:unclaimable($1 now, $2 limit)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
spent as materialized (
    select j."id" as key
    from "email_snoozes" j
    where j."inactive" = false and j."claimed_at" is null and j."remind_at" <= (select now from clock) and coalesce(j."attempts", 0) >= coalesce(j."max_attempts", 2147483647)
    limit $2::integer
    for update skip locked
)
update "email_snoozes" j
set "inactive" = true, "updated_at" = clock.now
from clock
where j."id" = any(array(select key from spent))
returning j."id"
