-- retire:last_retry($1 now, $2 errors, $3 ids, $4 tokens)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now, set_config('lock_timeout', '100ms', true)
)
update "email_snoozes" j
set "inactive" = true, "attempts" = coalesce(j."attempts", 0) + 1, "last_error" = ($2::text[])[width_bucket(j."id", $3::bigint[])], "last_error_at" = clock.now, "claim_token" = null, "claimed_by" = null, "claimed_at" = null, "remind_at" = greatest(j."remind_at", clock.now), "updated_at" = clock.now
from clock
where j."id" = any($3::bigint[]) and j."claim_token" = ($4::uuid[])[width_bucket(j."id", $3::bigint[])] and coalesce(j."attempts", 0) + 1 >= coalesce(j."max_attempts", 2147483647)
returning j."id"
