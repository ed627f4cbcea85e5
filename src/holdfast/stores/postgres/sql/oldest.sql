-- role: reader
-- Since when the oldest claimable job of each entrypoint waits.
-- Promise: a handful of index probes a lane, whatever the backlog, and the rows in flight at its
-- head. Index: ready.
with recursive entrypoint as (
    (select j.entrypoint as name from {table} j
     where j.held_at is null order by j.entrypoint limit 1)
    union all
    select (
        select j.entrypoint from {table} j
        where j.held_at is null and j.entrypoint > e.name order by j.entrypoint limit 1
    )
    from entrypoint e
    where e.name is not null
),
lane as (
    select e.name as entrypoint, (
        select j.priority from {table} j
        where j.held_at is null and j.entrypoint = e.name
        order by j.priority desc limit 1
    ) as priority
    from entrypoint e
    where e.name is not null
    union all
    select l.entrypoint, (
        select j.priority from {table} j
        where j.held_at is null and j.entrypoint = l.entrypoint and j.priority < l.priority
        order by j.priority desc limit 1
    )
    from lane l
    where l.priority is not null
)
select l.entrypoint, min(waiting.since)
from lane l
cross join lateral (
    select j.execute_after as since
    from {table} j
    where j.held_at is null and j.entrypoint = l.entrypoint and j.priority = l.priority
      and {claimable} and j.execute_after <= coalesce(:now::timestamptz, clock_timestamp())
    order by j.execute_after, j.id
    limit 1
) waiting
group by l.entrypoint
order by l.entrypoint collate "C"
