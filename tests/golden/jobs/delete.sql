-- delete($1 now, $2 ids, $3 actor, $4 reason, $5 channel)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
here as materialized (
    select j.id from "holdfast" j
    where j.id = any($2::bigint[]) and j.status in ('queued'::"holdfast_status", 'failed'::"holdfast_status")
    order by j.id
    for update of j
),
gone as (
    delete from "holdfast" j
    where j.id = any(array(select id from here))
    returning j.id, j.entrypoint, j.priority, j.attempts, j.recoveries,
              j.created, j.execute_after, case when coalesce(j.status = 'picked'::"holdfast_status", false) then j.lease end as lease,
              case when coalesce(j.status = 'picked'::"holdfast_status", false) then j.claimed_by end as claimed_by,
              case when coalesce(j.status = 'picked'::"holdfast_status", false) then j.claimed_at end as claimed_at, coalesce(j.status = 'picked'::"holdfast_status", false) as leased
),
logged as (
    insert into "holdfast_log" (
        job_id, status, entrypoint, priority, attempt, recoveries,
        claimed_by, claimed_at, actor, reason, created, enqueued_at, due_at, lease
    )
    select g.id, 'deleted'::"holdfast_status", g.entrypoint, g.priority, g.attempts, g.recoveries,
           g.claimed_by, g.claimed_at, $3::text, coalesce($4::text, null::text), clock.now,
           g.created, g.execute_after, g.lease
    from gone g, clock
    returning job_id
),
notified as (
    select pg_notify($5::text, 'cancel ' || id) from gone where leased
)
select job_id from logged where (select count(*) from notified) >= 0
