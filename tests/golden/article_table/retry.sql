-- retry($1 now, $2 delays, $3 ids, $4 errors, $5 tokens)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now, set_config('lock_timeout', '100ms', true)
)
update "email_snoozes" j
set "attempts" = coalesce(j."attempts", 0) + 1, "remind_at" = greatest(j."remind_at", clock.now + coalesce(($2::interval[])[width_bucket(j."id", $3::bigint[])], interval '0')), "last_error" = ($4::text[])[width_bucket(j."id", $3::bigint[])], "last_error_at" = clock.now, "claim_token" = null, "claimed_by" = null, "claimed_at" = null, "updated_at" = clock.now
from clock
where j."id" = any($3::bigint[]) and j."claim_token" = ($5::uuid[])[width_bucket(j."id", $3::bigint[])] and coalesce(j."attempts", 0) + 1 < coalesce(j."max_attempts", 2147483647)
returning j."id"
