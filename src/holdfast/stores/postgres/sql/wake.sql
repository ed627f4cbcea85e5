-- role: worker
-- Wakes one more sleeping worker of these entrypoints, chosen at random, or all where none is listed.
-- Promise: nobody is notified when nobody needs it. Index: none; the table has a row for each worker.
select pg_notify(:channel::text, coalesce((
    select 'wake ' || c.id
    from (
        select w.id
        from {workers} w
        where w.entrypoints && :entrypoints::text[] and {sleeps}
        order by random()
        limit 1
    ) c
), ''))
where {needed}
