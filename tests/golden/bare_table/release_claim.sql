-- release_claim($1 now, $2 tokens)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
)
update "app"."orders" j
set "claim_token" = null, "claimed_at" = null
from clock
where j."claimed_at" is not null and j."claim_token" = any($2::uuid[])
returning j."code"
