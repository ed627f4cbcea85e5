-- delete_expired($1 now, $2 holder, $3 limit)
with newest as materialized (
    select greatest(
        pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
        pg_current_xact_id_if_assigned()::text::bigint
    ) as tx
),
kept as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) - r.succeeded as succeeded,
           coalesce($1::timestamptz, clock_timestamp()) - r.others as others
    from "holdfast_retention" r
),
old as materialized (
    select l.job_id, l.id
    from "holdfast_log" l
    where l.created < (select greatest(k.succeeded, k.others) from kept k)
      and l.created < (
          select case when l.status = 'successful'::"holdfast_status" then k.succeeded else k.others end from kept k
      )
      and (l.tx < (select c.tx from "holdfast_counted" c, newest where c.tx <= newest.tx)
           or l.tx > (select newest.tx from newest))
      and not exists (select from "holdfast" j where j.id = l.job_id)
      and ($2::uuid is null or exists (select from "holdfast_upkeep" duty where duty.token = $2::uuid and duty.expires > coalesce($1::timestamptz, clock_timestamp())))
    limit $3::integer
),
gone as (
    delete from "holdfast_log" l using old o where l.job_id = o.job_id and l.id = o.id returning 1
)
select count(*) from gone
