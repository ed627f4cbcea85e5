-- role: worker
-- Deletes workers that have not reported for an hour. Live workers report every few seconds.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now,
           set_config('synchronous_commit', 'off', true)
)
delete from {workers} w
using clock
where w.heartbeat < clock.now - interval '1 hour' and {on_duty}
