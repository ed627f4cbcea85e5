-- recover($1 now, $2 worker, $3 lease, $4 limit)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
stale as materialized (
    select j."code" as key, coalesce(j."attempts", 0) + 1 >= 5 as spent
    from "app"."orders" j
    where j."inactive" = false and j."claimed_at" is not null and case when $2::text is null then j."claimed_at" <= (select now from clock) - $3::interval and j."claimed_at" <= (select now from clock) - $3::interval else false end
    order by j."claimed_at"
    limit $4::integer
    for update skip locked
),
recovered as (
    update "app"."orders" j set "attempts" = coalesce(j."attempts", 0) + 1, "claim_token" = null, "claimed_at" = null from clock
    where j."code" = any(array(select key from stale where not spent))
),
retired as (
    update "app"."orders" j set "inactive" = true, "attempts" = coalesce(j."attempts", 0) + 1, "claim_token" = null, "claimed_at" = null from clock
    where j."code" = any(array(select key from stale where spent))
)
select key, spent from stale
