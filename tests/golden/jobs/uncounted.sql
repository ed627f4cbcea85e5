-- uncounted($1 now, $2 older_than)
with newest as materialized (
    select greatest(
        pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
        pg_current_xact_id_if_assigned()::text::bigint
    ) as tx
)
select count(*)
from "holdfast_log" l
where l.created < coalesce($1::timestamptz, clock_timestamp()) - $2::interval
  and l.tx >= (select c.tx from "holdfast_counted" c)
  and l.tx <= (select newest.tx from newest)
