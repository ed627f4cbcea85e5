-- complete($1 now, $2 ids, $3 tokens)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now, set_config('lock_timeout', '100ms', true)
)
update "email_snoozes" j
set "inactive" = true, "claim_token" = null, "claimed_by" = null, "claimed_at" = null, "updated_at" = clock.now
from clock
where j."id" = any($2::bigint[]) and j."claim_token" = ($3::uuid[])[width_bucket(j."id", $2::bigint[])]
returning j."id"
