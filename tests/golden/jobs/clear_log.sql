-- clear_log($1 after_job, $2 after, $3 entrypoints, $4 limit)
with newest as materialized (
    select greatest(
        pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
        pg_current_xact_id_if_assigned()::text::bigint
    ) as tx
),
few as materialized (
    select l.job_id, l.id
    from "holdfast_log" l
    where (l.job_id, l.id) > ($1::bigint, $2::bigint)
      and ($3::text[] is null or l.entrypoint = any($3::text[]))
      and (l.tx < (select c.tx from "holdfast_counted" c, newest where c.tx <= newest.tx)
           or l.tx > (select newest.tx from newest))
    order by l.job_id, l.id
    limit $4::integer
),
gone as (
    delete from "holdfast_log" l using few f where l.job_id = f.job_id and l.id = f.id returning 1
)
select f.job_id, f.id, (select count(*) from gone) from few f order by f.job_id desc, f.id desc
limit 1
