-- delete_results($1 now, $2 holder, $3 limit)
with gone as (
    delete from "holdfast_results" r
    where r.job_id = any(array(
        select e.job_id from "holdfast_results" e
        where e.expires_at <= coalesce($1::timestamptz, clock_timestamp())
          and ($2::uuid is null or exists (select from "holdfast_upkeep" duty where duty.token = $2::uuid and duty.expires > coalesce($1::timestamptz, clock_timestamp())))
        order by e.expires_at
        limit $3::integer
    ))
    returning r.job_id
)
select count(*)::integer from gone
