-- role: reader
-- For each entrypoint with live jobs, how many of its first 1,001 are due, and how many are due later.
-- Promise: a bounded number of rows for each of at most 200 entrypoints. Index: ready.
with recursive entrypoint as (
    (select j.entrypoint as name, 1 as n from {table} j
     where j.held_at is null order by j.entrypoint limit 1)
    union all
    select (
        select j.entrypoint from {table} j
        where j.held_at is null and j.entrypoint > e.name order by j.entrypoint limit 1
    ), e.n + 1
    from entrypoint e
    where e.name is not null and e.n < 200
)
select e.name, few.due, few.later, few.looked
from entrypoint e
cross join lateral (
    select count(*) filter (where x.waiting and x.execute_after <= x.now) as due,
           count(*) filter (where x.waiting and x.execute_after > x.now) as later,
           count(*) as looked
    from (
        select {waiting} as waiting, j.execute_after,
               coalesce(:now::timestamptz, clock_timestamp()) as now
        from {table} j
        where j.held_at is null and j.entrypoint = e.name
        order by j.priority desc, j.execute_after, j.id
        limit 1001
    ) x
) few
where e.name is not null
