-- role: worker
-- Whether jobs wait that a worker died with: for suspects and for the others when the first is due,
-- how many of each are leased, and how many workers are alive.
-- Promise: one index probe an entrypoint where there are none; of many, the first of each entrypoint
-- are looked at. Index: recovered.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
)
select found.suspect,
       min(greatest(found.execute_after, (select now from clock))) filter (where found.waits)
           - (select now from clock),
       count(*) filter (where not found.waits),
       (
           select count(*) from {workers}
           where heartbeat >= (select now from clock) - interval '1 minute'
       )
from unnest(
    (select :entrypoints::text[]), (select :caps::integer[])
) as l(entrypoint, max_recoveries)
cross join lateral (
    select j.execute_after, {claimable} as waits, {suspect} as suspect
    from {table} j
    where j.held_at is null and {recovered} and j.entrypoint = l.entrypoint
      and not exists (
          select from {pauses} p
          where p.name in (l.entrypoint, '')
            and (p.until is null or p.until > (select now from clock))
      )
    order by j.priority desc, j.execute_after, j.id
    limit {most}
) found
group by found.suspect
