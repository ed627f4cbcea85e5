-- renew($1 now, $2 held_ids, $3 tokens, $4 owners)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now,
           set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '100ms', true)
),
renewed as (
    update "holdfast" j
    set heartbeat = clock.now
    from clock
    where j.id = any(cast((select $2::text::bigint[]) as bigint[])) and j.claim_token = ($3::uuid[])[(cast((select $4::text::integer[]) as integer[]))[width_bucket(j.id, cast((select $2::text::bigint[]) as bigint[]))]] and coalesce(j.status = 'picked'::"holdfast_status", false)
    returning j.id
)
select array(select id from renewed)
