-- role: pruner
-- Counts old log rows that prune leaves, because the statistics lack them. Index: log_time.
with newest as materialized (
    select greatest(
        pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
        pg_current_xact_id_if_assigned()::text::bigint
    ) as tx
)
select count(*)
from {log} l
where l.created < coalesce(:now::timestamptz, clock_timestamp()) - :older_than::interval
  and l.tx >= (select c.tx from {counted} c)
  and l.tx <= (select newest.tx from newest)
