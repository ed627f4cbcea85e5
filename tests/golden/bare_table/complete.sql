-- complete($1 now, $2 ids, $3 tokens)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now, set_config('lock_timeout', '100ms', true)
)
update "app"."orders" j
set "inactive" = true, "claim_token" = null, "claimed_at" = null
from clock
where j."code" = any($2::text[]) and j."claim_token" = ($3::uuid[])[width_bucket(j."code" collate "C", $2::text[])]
returning j."code"
