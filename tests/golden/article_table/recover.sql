-- recover($1 now, $2 lived, $3 contact, $4 asked, $5 worker, $6 lease, $7 held_keys, $8 held_tokens, $9 limit)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now, greatest(case when $1::timestamptz is null and pg_postmaster_start_time() between clock_timestamp() - $2::interval and clock_timestamp() then pg_postmaster_start_time() end, coalesce($1::timestamptz, clock_timestamp()) - $3::interval, case when coalesce($1::timestamptz, clock_timestamp()) - $4::timestamptz > interval '1 second' then coalesce($1::timestamptz, clock_timestamp()) end) as since
),
stale as materialized (
    select j."id" as key, not ($5::text is null and coalesce(greatest(j."claimed_at") < (select since from clock), false)) and (j."last_error" is not null and j."last_error_at" > j."remind_at" and substr(j."claim_token"::text, 15, 1) = '8') is true as convicted, ($5::text is null and coalesce(greatest(j."claimed_at") < (select since from clock), false)) as excused
    from "email_snoozes" j
    where j."inactive" = false and j."claimed_at" is not null and case when $5::text is null then j."claimed_at" <= (select now from clock) - $6::interval and j."claimed_at" <= (select now from clock) - $6::interval else j."claimed_by" = $5::text end
      and (not ($5::text is null and coalesce(greatest(j."claimed_at") < (select since from clock), false)) or (select now - since from clock) >= $6::interval)
      and not (j."id" = any($7::bigint[])
               and coalesce(j."claim_token" = any($8::uuid[]), false))
    order by j."claimed_at"
    limit $9::integer
    for update skip locked
),
recovered as (
    update "email_snoozes" j set "last_error" = coalesce(j."last_error", 'stale claim recovered'), "last_error_at" = clock.now, "claim_token" = null, "claimed_by" = null, "claimed_at" = null, "updated_at" = clock.now from clock
    where j."id" = any(array(select key from stale where not convicted and not excused))
),
excused as (
    update "email_snoozes" j set "claim_token" = null, "claimed_by" = null, "claimed_at" = null, "updated_at" = clock.now from clock
    where j."id" = any(array(select key from stale where excused))
),
retired as (
    update "email_snoozes" j set "inactive" = true, "last_error" = case when starts_with(j."last_error", 'retired: its worker died while this row ran alone') then j."last_error" else 'retired: its worker died while this row ran alone' || coalesce('; before that: ' || j."last_error", '') end, "last_error_at" = clock.now, "claim_token" = null, "claimed_by" = null, "claimed_at" = null, "updated_at" = clock.now from clock
    where j."id" = any(array(select key from stale where convicted))
)
select key, convicted, excused from stale
