-- Deletes old log rows that are counted already, in bounded bites. Index: log_time, primary key.
with old as materialized (
    select l.job_id, l.id
    from {log} l
    where l.created < coalesce(:now::timestamptz, clock_timestamp()) - :older_than::interval
      and l.tx < (select c.tx from {counted} c)
    order by l.created, l.id
    limit :limit::integer
),
gone as (
    delete from {log} l using old o where l.job_id = o.job_id and l.id = o.id returning 1
)
select count(*) from gone
