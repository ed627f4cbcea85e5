-- role: worker
-- Deletes the progress of jobs that left the queue an hour ago or more. Index: primary keys.
with gone as (
    delete from {progress} p
    where p.job_id = any(array(
        select o.job_id from {progress} o
        where o.updated <= coalesce(:now::timestamptz, clock_timestamp()) - interval '1 hour'
          and not exists (select from {table} j where j.id = o.job_id)
          and {on_duty}
        limit :limit::integer
    ))
    returning p.job_id
)
select count(*)::integer from gone
