-- delete_silent_workers($1 now, $2 holder)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now,
           set_config('synchronous_commit', 'off', true)
)
delete from "holdfast_workers" w
using clock
where w.heartbeat < clock.now - interval '1 hour' and ($2::uuid is null or exists (select from "holdfast_upkeep" duty where duty.token = $2::uuid and duty.expires > coalesce($1::timestamptz, clock_timestamp())))
