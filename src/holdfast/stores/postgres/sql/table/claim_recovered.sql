-- Leases rows that a worker died with, from among the first due rows in the queue's order.
-- Promise: however long the backlog, no more than {look_ahead} rows of it are read.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
),
ahead as materialized (
    select {key} as key, {chosen} as chosen
    from {table} j
    where {ready} {where}
    order by {order}
    limit {look_ahead}
),
due as materialized (
    select {key} as key
    from {table} j
    where {key} = any(array(select key from ahead where chosen)) and {guards} {where}
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
