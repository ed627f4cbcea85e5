-- Retires rows that may not be claimed any more, such as after max_attempts was lowered by hand.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
),
spent as materialized (
    select {key} as key
    from {table} j
    where {guards} {where}
    limit :limit::integer
    for update skip locked
)
update {table} j
set {sets}
from clock
where {key} = any(array(select key from spent))
returning {key}
