-- Whether the first due rows in the queue's order include suspects, and others that a worker died
-- with; and how many suspects are claimed.
-- Promise: however long the backlog, no more than {look_ahead} rows of it are read.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
),
ahead as materialized (
    select {recovered} as recovered, {suspect} as suspect
    from {table} j
    where {ready} {where}
    order by {order}
    limit {look_ahead}
)
select exists (select from ahead where recovered and suspect is not true),
       exists (select from ahead where suspect),
       (select count(*) from {table} j where {picked} and {suspect} {where})
