-- release_claim($1 now, $2 tokens)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
)
update "email_snoozes" j
set "claim_token" = null, "claimed_by" = null, "claimed_at" = null, "updated_at" = clock.now
from clock
where j."claimed_at" is not null and j."claim_token" = any($2::uuid[])
returning j."id"
