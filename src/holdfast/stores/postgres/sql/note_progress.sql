-- role: worker
-- Stores the progress that the holders of leases report. Index: primary keys.
-- Promise: only for rows whose token is the one given.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now, {patience},
           set_config('synchronous_commit', 'off', true)
),
noted as (
    insert into {progress} (job_id, fraction, message, updated)
    select j.id, (:fractions::real[])[{place}], (:messages::text[])[{place}], clock.now
    from {table} j, clock
    where j.id = any({ids}) and {guards}
    on conflict (job_id) do update
    set fraction = excluded.fraction, message = excluded.message, updated = excluded.updated
    returning job_id
)
select array(select job_id from noted)
