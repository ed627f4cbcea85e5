-- delete_progress($1 now, $2 holder, $3 limit)
with gone as (
    delete from "holdfast_progress" p
    where p.job_id = any(array(
        select o.job_id from "holdfast_progress" o
        where o.updated <= coalesce($1::timestamptz, clock_timestamp()) - interval '1 hour'
          and not exists (select from "holdfast" j where j.id = o.job_id)
          and ($2::uuid is null or exists (select from "holdfast_upkeep" duty where duty.token = $2::uuid and duty.expires > coalesce($1::timestamptz, clock_timestamp())))
        limit $3::integer
    ))
    returning p.job_id
)
select count(*)::integer from gone
