-- role: pruner
-- Deletes log rows whose time is over, in bounded batches. Index: log_time, primary key.
-- Promise: deletes none that is not counted yet (see prune.sql), and none of a job that is still in
-- the queue, held or not. The newest rows of the two kinds bound the scan of the index.
with newest as materialized (
    select greatest(
        pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
        pg_current_xact_id_if_assigned()::text::bigint
    ) as tx
),
kept as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) - r.succeeded as succeeded,
           coalesce(:now::timestamptz, clock_timestamp()) - r.others as others
    from {retention} r
),
old as materialized (
    select l.job_id, l.id
    from {log} l
    where l.created < (select greatest(k.succeeded, k.others) from kept k)
      and l.created < (
          select case when l.status = {success} then k.succeeded else k.others end from kept k
      )
      and (l.tx < (select c.tx from {counted} c, newest where c.tx <= newest.tx)
           or l.tx > (select newest.tx from newest))
      and not exists (select from {table} j where j.id = l.job_id)
      and {on_duty}
    limit :limit::integer
),
gone as (
    delete from {log} l using old o where l.job_id = o.job_id and l.id = o.id returning 1
)
select count(*) from gone
