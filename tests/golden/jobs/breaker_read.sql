-- breaker_read($1 now, $2 names)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
)
select clock.now, b.revision, b.name, b.state, b.generation, b.failures, b.opened_at, b.cooldown, b.probes, b.actor, b.reason, b.updated
from clock
left join "holdfast_breakers" b on $2::text[] is null or b.name = any($2::text[])
order by b.name collate "C"
