-- recover($1 now, $2 worker, $3 lease, $4 limit)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
stale as materialized (
    select j."id" as key, coalesce(j."recoveries", 0) + 1 >= 3 as spent
    from "email_snoozes" j
    where j."inactive" = false and j."claimed_at" is not null and case when $2::text is null then j."claimed_at" <= (select now from clock) - $3::interval and coalesce(j."heartbeat", j."claimed_at") <= (select now from clock) - $3::interval else j."claimed_by" = $2::text end
    order by j."claimed_at"
    limit $4::integer
    for update skip locked
),
recovered as (
    update "email_snoozes" j set "recoveries" = coalesce(j."recoveries", 0) + 1, "last_error" = coalesce(j."last_error", 'stale claim recovered'), "last_error_at" = clock.now, "claim_token" = null, "claimed_by" = null, "claimed_at" = null, "heartbeat" = null, "updated_at" = clock.now from clock
    where j."id" = any(array(select key from stale where not spent))
),
retired as (
    update "email_snoozes" j set "inactive" = true, "outcome" = 'failed', "recoveries" = coalesce(j."recoveries", 0) + 1, "last_error" = coalesce(j."last_error", 'stale claim recovered'), "last_error_at" = clock.now, "claim_token" = null, "claimed_by" = null, "claimed_at" = null, "heartbeat" = null, "updated_at" = clock.now from clock
    where j."id" = any(array(select key from stale where spent))
)
select key, spent from stale
