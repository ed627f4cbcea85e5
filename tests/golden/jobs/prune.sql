-- prune($1 now, $2 older_than, $3 limit)
with newest as materialized (
    select greatest(
        pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
        pg_current_xact_id_if_assigned()::text::bigint
    ) as tx
),
old as materialized (
    select l.job_id, l.id
    from "holdfast_log" l
    where l.created < coalesce($1::timestamptz, clock_timestamp()) - $2::interval
      and (l.tx < (select c.tx from "holdfast_counted" c, newest where c.tx <= newest.tx)
           or l.tx > (select newest.tx from newest))
    order by l.created, l.id
    limit $3::integer
),
gone as (
    delete from "holdfast_log" l using old o where l.job_id = o.job_id and l.id = o.id returning 1
)
select count(*) from gone
