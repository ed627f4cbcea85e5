-- Frees rows whose worker stopped renewing, or one known to be dead; at the cap they are retired.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
),
stale as materialized (
    select {key} as key, {spent} as spent
    from {table} j
    where {picked} and {stale} {where}
    order by {claimed_at}
    limit :limit::integer
    for update skip locked
),
recovered as (
    update {table} j set {recover} from clock
    where {key} = any(array(select key from stale where not spent))
),
retired as (
    update {table} j set {retire} from clock
    where {key} = any(array(select key from stale where spent))
)
select key, spent from stale
