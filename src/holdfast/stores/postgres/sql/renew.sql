-- role: worker
-- Moves the heartbeats of leases that are still owned. Index: primary key.
-- Here and below the ids are sorted without duplicates, and width_bucket finds the place of a row
-- among them by binary search: there is no join whose plan could depend on statistics.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now,
           set_config('synchronous_commit', 'off', true), {patience}
),
renewed as (
    update {table} j
    set {sets}
    from clock
    where j.id = any({ids}) and {guards}
    returning j.id
)
select array(select id from renewed)
