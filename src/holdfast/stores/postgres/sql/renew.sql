-- Moves the heartbeats of leases that are still owned. Index: primary key.
-- Here and below `ids` is sorted without duplicates, and width_bucket finds a row's place in it by
-- binary search: there is no join whose plan could depend on statistics.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now,
           set_config('synchronous_commit', 'off', true)
)
update {table} j
set {sets}
from clock
where j.id = any(:ids::bigint[]) and {guards}
returning j.id
