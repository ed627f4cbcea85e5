-- role: worker
-- Deletes expired results, the oldest first. Index: expires_at.
with gone as (
    delete from {results} r
    where r.job_id = any(array(
        select e.job_id from {results} e
        where e.expires_at <= coalesce(:now::timestamptz, clock_timestamp())
          and {on_duty}
        order by e.expires_at
        limit :limit::integer
    ))
    returning r.job_id
)
select count(*)::integer from gone
