-- report($1 now, $2 id, $3 host, $4 pid, $5 version, $6 entrypoints, $7 concurrency, $8 running, $9 state, $10 heartbeat_timeout, $11 full_entrypoints, $12 breaker_names, $13 duty)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now,
           set_config('synchronous_commit', 'off', true)
)
insert into "holdfast_workers" as w (
    id, host, pid, version, entrypoints, concurrency, running, state, started_at, heartbeat,
    heartbeat_timeout, full_entrypoints, breaker_names
)
select $2::text, $3::text, $4::integer, $5::text, $6::text[],
       $7::integer, $8::integer, $9::text, clock.now, clock.now,
       $10::interval, $11::text[],
       $12::text[]
from clock
on conflict (id) do update
set entrypoints = excluded.entrypoints, concurrency = excluded.concurrency,
    running = excluded.running, state = excluded.state, heartbeat = excluded.heartbeat,
    full_entrypoints = excluded.full_entrypoints, breaker_names = excluded.breaker_names
returning not exists (
    select from "holdfast_upkeep" u where u.duty = $13::text and u.expires > (select now from clock)
)
