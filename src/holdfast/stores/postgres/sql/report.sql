-- role: worker
-- Records that a worker is alive, and returns whether no worker does the upkeep. Index: primary key.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now,
           set_config('synchronous_commit', 'off', true)
)
insert into {workers} as w (
    id, host, pid, version, entrypoints, concurrency, running, state, started_at, heartbeat,
    heartbeat_timeout, full_entrypoints, breaker_names
)
select :id::text, :host::text, :pid::integer, :version::text, :entrypoints::text[],
       :concurrency::integer, :running::integer, :state::text, clock.now, clock.now,
       :heartbeat_timeout::interval, :full_entrypoints::text[],
       :breaker_names::text[]
from clock
on conflict (id) do update
set entrypoints = excluded.entrypoints, concurrency = excluded.concurrency,
    running = excluded.running, state = excluded.state, heartbeat = excluded.heartbeat,
    full_entrypoints = excluded.full_entrypoints, breaker_names = excluded.breaker_names
returning not exists (
    select from {upkeep} u where u.duty = :duty::text and u.expires > (select now from clock)
)
