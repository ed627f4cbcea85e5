-- cancel($1 now, $2 ids, $3 actor, $4 reason, $5 channel)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
here as materialized (
    select j.id from "holdfast" j
    where j.id = any($2::bigint[]) and j.status in ('queued'::"holdfast_status", 'picked'::"holdfast_status", 'failed'::"holdfast_status")
    order by j.id
    for update of j
),
gone as (
    delete from "holdfast" j
    where j.id = any(array(select id from here))
    returning j.id, j.entrypoint, j.priority, j.attempts, j.recoveries,
              j.claimed_by, j.claimed_at, j.claim_token
),
logged as (
    insert into "holdfast_log" (
        job_id, status, entrypoint, priority, attempt, recoveries,
        claimed_by, claimed_at, actor, reason, created
    )
    select g.id, 'canceled'::"holdfast_status", g.entrypoint, g.priority, g.attempts, g.recoveries,
           g.claimed_by, g.claimed_at, $3::text, coalesce($4::text, null::text), clock.now
    from gone g, clock
    returning job_id
),
told as (
    select pg_notify($5::text, 'cancel ' || id) from gone where claim_token is not null
)
select job_id from logged where (select count(*) from told) >= 0
