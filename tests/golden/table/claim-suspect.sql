-- claim:suspect($1 now, $2 limit, $3 token, $4 worker)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
ahead as materialized (
    select j."id" as key, coalesce(j."recoveries", 0) > 0 and coalesce(j."recoveries", 0) + 1 >= 3 as chosen
    from "email_snoozes" j
    where j."inactive" = false and j."claimed_at" is null and j."remind_at" <= (select now from clock) and coalesce(j."attempts", 0) < coalesce(j."max_attempts", 2147483647)
    order by j."remind_at", j."id"
    limit 1000
),
due as materialized (
    select j."id" as key
    from "email_snoozes" j
    where j."id" = any(array(select key from ahead where chosen)) and j."inactive" = false and j."claimed_at" is null and j."remind_at" <= (select now from clock) and coalesce(j."attempts", 0) < coalesce(j."max_attempts", 2147483647) and coalesce(j."recoveries", 0) > 0 and coalesce(j."recoveries", 0) + 1 >= 3
    order by j."remind_at", j."id"
    limit $2::integer
    for update skip locked
),
leased as (
    update "email_snoozes" j
    set "outcome" = null, "claim_token" = $3::uuid, "claimed_by" = $4::text, "claimed_at" = clock.now, "heartbeat" = clock.now, "updated_at" = clock.now
    from clock
    where j."id" = any(array(select key from due))
    returning j."id", j."subject"
)
select j."id", j."subject"
from leased j
join unnest(array(select key from due)) with ordinality as d (key, place) on d.key = j."id"
order by d.place
