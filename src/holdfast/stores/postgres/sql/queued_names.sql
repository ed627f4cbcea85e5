-- role: reader
-- The names under which jobs are queued or run.
-- Promise: one index probe for each of at most 200 names. Index: ready.
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
select e.name from entrypoint e where e.name is not null
