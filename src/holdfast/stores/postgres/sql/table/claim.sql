-- Leases due rows of a user's table, in the order that its queue declares.
-- Promise: at most `limit` rows, none that another transaction has locked.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
),
due as materialized (
    select {key} as key
    from {table} j
    where {guards} {where}
    order by {order}
    limit :limit::integer
    for update skip locked
),
leased as (
    update {table} j
    set {sets}
    from clock
    where {key} = any(array(select key from due))
    returning {columns}
)
select {columns}
from leased j
join unnest(array(select key from due)) with ordinality as d (key, place) on d.key = {key}
order by d.place
