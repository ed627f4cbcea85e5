-- role: pruner
-- Deletes old log rows that are counted already, in bounded batches. Index: log_time, primary key.
-- Promise: deletes none that is not counted yet. Ids above every transaction's are another server's,
-- from which the tables were restored: such a mark says nothing about rows of ours, and such rows
-- are not counted again.
with newest as materialized (
    select greatest(
        pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
        pg_current_xact_id_if_assigned()::text::bigint
    ) as tx
),
old as materialized (
    select l.job_id, l.id
    from {log} l
    where l.created < coalesce(:now::timestamptz, clock_timestamp()) - :older_than::interval
      and (l.tx < (select c.tx from {counted} c, newest where c.tx <= newest.tx)
           or l.tx > (select newest.tx from newest))
    order by l.created, l.id
    limit :limit::integer
),
gone as (
    delete from {log} l using old o where l.job_id = o.job_id and l.id = o.id returning 1
)
select count(*) from gone
