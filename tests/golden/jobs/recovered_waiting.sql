-- recovered_waiting($1 now, $2 entrypoints, $3 caps)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
)
select found.suspect,
       min(greatest(found.execute_after, (select now from clock))) filter (where found.waits)
           - (select now from clock),
       count(*) filter (where not found.waits),
       (
           select count(*) from "holdfast_workers"
           where heartbeat >= (select now from clock) - interval '1 minute'
       )
from unnest(
    (select $2::text[]), (select $3::integer[])
) as l(entrypoint, max_recoveries)
cross join lateral (
    select j.execute_after, j.status = 'queued'::"holdfast_status" as waits, j.recoveries + 1 >= greatest(2, coalesce(j.max_recoveries, l.max_recoveries)) as suspect
    from "holdfast" j
    where j.held_at is null and j.recoveries > 0 and j.entrypoint = l.entrypoint
      and not exists (
          select from "holdfast_pauses" p
          where p.name in (l.entrypoint, '')
            and (p.until is null or p.until > (select now from clock))
      )
    order by j.priority desc, j.execute_after, j.id
    limit 1000
) found
group by found.suspect
