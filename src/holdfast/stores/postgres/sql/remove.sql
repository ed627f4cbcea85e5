-- role: operator
-- Takes jobs out of the queue by hand, whoever holds them; a holder is notified. Index: primary key.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
),
here as materialized (
    select j.id from {table} j
    where j.id = any(:ids::bigint[]) and {sources}
    order by j.id
    for update of j
),
gone as (
    delete from {table} j
    where j.id = any(array(select id from here))
    returning j.id, j.entrypoint, j.priority, j.attempts, j.recoveries,
              j.created, j.execute_after, case when {leased} then j.lease end as lease,
              case when {leased} then j.claimed_by end as claimed_by,
              case when {leased} then j.claimed_at end as claimed_at, {leased} as leased
),
logged as (
    insert into {log} (
        job_id, status, entrypoint, priority, attempt, recoveries,
        claimed_by, claimed_at, actor, reason, created, enqueued_at, due_at, lease
    )
    select g.id, {target}, g.entrypoint, g.priority, g.attempts, g.recoveries,
           g.claimed_by, g.claimed_at, :actor::text, coalesce(:reason::text, {reason}), clock.now,
           g.created, g.execute_after, g.lease
    from gone g, clock
    returning job_id
),
notified as (
    select pg_notify(:channel::text, 'cancel ' || id) from gone where leased
)
select job_id from logged where (select count(*) from notified) >= 0
