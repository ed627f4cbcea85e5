-- claim($1 now, $2 limit, $3 token)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
due as materialized (
    select j."code" as key
    from "app"."orders" j
    where j."inactive" = false and j."claimed_at" is null and j."ship_at" <= (select now from clock) and coalesce(j."attempts", 0) < 5
    order by j."priority" desc, j."ship_at", j."code"
    limit $2::integer
    for update skip locked
),
leased as (
    update "app"."orders" j
    set "claim_token" = $3::uuid, "claimed_at" = clock.now
    from clock
    where j."code" = any(array(select key from due))
    returning j."code"
)
select j."code"
from leased j
join unnest(array(select key from due)) with ordinality as d (key, place) on d.key = j."code"
order by d.place
