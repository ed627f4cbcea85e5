-- role: worker
-- Wakes one more sleeping worker of these entrypoints, chosen at random, or all where none is listed.
-- Promise: no NOTIFY is sent when no worker needs it. Index: none; the table has a row for each worker.
select pg_notify(coalesce((
    select {own_channel}
    from (
        select w.id from {workers} w
        where w.entrypoints && :entrypoints::text[]
        order by random() offset 0
    ) w
    where {sleeps}
    limit 1
), :channel::text), '')
where {needed}
