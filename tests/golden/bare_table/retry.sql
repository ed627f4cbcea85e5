-- retry($1 now, $2 delays, $3 ids, $4 tokens)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now, set_config('lock_timeout', '100ms', true)
)
update "app"."orders" j
set "attempts" = coalesce(j."attempts", 0) + 1, "ship_at" = greatest(j."ship_at", clock.now + coalesce(($2::interval[])[width_bucket(j."code" collate "C", $3::text[])], interval '0')), "claim_token" = null, "claimed_at" = null
from clock
where j."code" = any($3::text[]) and j."claim_token" = ($4::uuid[])[width_bucket(j."code" collate "C", $3::text[])] and coalesce(j."attempts", 0) + 1 < 5
returning j."code"
