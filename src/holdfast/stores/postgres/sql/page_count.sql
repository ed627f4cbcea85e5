-- role: reader
-- How many live jobs there are of an entrypoint, or of all: the first 10,001 of each kind.
-- Index: ready, held.
select live.waiting, live.leased, live.looked,
       (select count(*) from (
           select from {table} j
           where j.held_at is not null
             and (:entrypoint::text is null or j.entrypoint = :entrypoint::text)
           limit 10001
       ) few)
from (
    select count(*) filter (where x.waiting) as waiting,
           count(*) filter (where x.leased) as leased, count(*) as looked
    from (
        (select {waiting} as waiting, {leased} as leased from {table} j
         where j.held_at is null and :entrypoint::text is null limit 10001)
        union all
        (select {waiting} as waiting, {leased} as leased from {table} j
         where j.held_at is null and j.entrypoint = :entrypoint::text limit 10001)
    ) x
) live
