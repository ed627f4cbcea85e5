-- page_count($1 entrypoint)
select live.waiting, live.leased, live.looked,
       (select count(*) from (
           select from "holdfast" j
           where j.held_at is not null
             and ($1::text is null or j.entrypoint = $1::text)
           limit 10001
       ) few)
from (
    select count(*) filter (where x.waiting) as waiting,
           count(*) filter (where x.leased) as leased, count(*) as looked
    from (
        (select j.status = 'queued'::"holdfast_status" as waiting, coalesce(j.status = 'picked'::"holdfast_status", false) as leased from "holdfast" j
         where j.held_at is null and $1::text is null limit 10001)
        union all
        (select j.status = 'queued'::"holdfast_status" as waiting, coalesce(j.status = 'picked'::"holdfast_status", false) as leased from "holdfast" j
         where j.held_at is null and j.entrypoint = $1::text limit 10001)
    ) x
) live
