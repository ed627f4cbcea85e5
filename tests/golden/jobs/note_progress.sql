-- note_progress($1 now, $2 fractions, $3 held_ids, $4 messages, $5 tokens, $6 owners)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now, set_config('lock_timeout', '100ms', true),
           set_config('synchronous_commit', 'off', true)
),
noted as (
    insert into "holdfast_progress" (job_id, fraction, message, updated)
    select j.id, ($2::real[])[width_bucket(j.id, cast((select $3::text::bigint[]) as bigint[]))], ($4::text[])[width_bucket(j.id, cast((select $3::text::bigint[]) as bigint[]))], clock.now
    from "holdfast" j, clock
    where j.id = any(cast((select $3::text::bigint[]) as bigint[])) and j.claim_token = ($5::uuid[])[(cast((select $6::text::integer[]) as integer[]))[width_bucket(j.id, cast((select $3::text::bigint[]) as bigint[]))]] and coalesce(j.status = 'picked'::"holdfast_status", false)
    on conflict (job_id) do update
    set fraction = excluded.fraction, message = excluded.message, updated = excluded.updated
    returning job_id
)
select array(select job_id from noted)
