-- The numbers of rows that wait, are claimed, are retired and are done.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
)
select count(*) filter (where {waiting} and {due} <= (select now from clock)),
       count(*) filter (where {waiting} and {due} > (select now from clock)),
       count(*) filter (where {claimed_at} is not null),
       count(*) filter (where {retired}),
       count(*) filter (where {inactive} and {claimed_at} is null and not {retired})
from {table} j
where true {where}
