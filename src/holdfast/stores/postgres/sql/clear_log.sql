-- role: pruner
-- Deletes log rows of these entrypoints, or of all, upwards from one of them, in bounded batches.
-- Index: primary key. Promise: deletes none that is not counted yet (see prune.sql).
with newest as materialized (
    select greatest(
        pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
        pg_current_xact_id_if_assigned()::text::bigint
    ) as tx
),
few as materialized (
    select l.job_id, l.id
    from {log} l
    where (l.job_id, l.id) > (:after_job::bigint, :after::bigint)
      and (:entrypoints::text[] is null or l.entrypoint = any(:entrypoints::text[]))
      and (l.tx < (select c.tx from {counted} c, newest where c.tx <= newest.tx)
           or l.tx > (select newest.tx from newest))
    order by l.job_id, l.id
    limit :limit::integer
),
gone as (
    delete from {log} l using few f where l.job_id = f.job_id and l.id = f.id returning 1
)
select f.job_id, f.id, (select count(*) from gone) from few f order by f.job_id desc, f.id desc
limit 1
