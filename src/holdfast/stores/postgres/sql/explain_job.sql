-- role: reader
-- The facts between a queued job and its claim: how many are before it, how many run under the
-- limit of its entrypoint, and which session has locked its row.
-- Promise: bounded, whatever the backlog: counts end at 1000, after at most 10,000 index rows.
-- Index: ready, primary key.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
),
job as materialized (
    select j.id, j.entrypoint, j.priority, j.execute_after, j.xmax::text as locker
    from {table} j where j.id = :id::bigint
),
before as materialized (
    select count(*) as count
    from job, lateral (
        select from (
            select j.execute_after
            from {table} j
            where j.held_at is null and j.entrypoint = job.entrypoint
              and j.priority > job.priority and {claimable}
            limit 10000
        ) higher, clock
        where higher.execute_after <= clock.now
        union all
        (
            select from {table} j
            where j.held_at is null and j.entrypoint = job.entrypoint
              and j.priority = job.priority and (j.execute_after, j.id) < (job.execute_after, job.id)
              and {claimable}
            order by j.execute_after, j.id
            limit 1000
        )
        limit 1000
    ) first
),
limited as materialized (
    select array(
        select j.id
        from {leases} l
        cross join lateral unnest(l.ids) as u(id)
        cross join lateral (
            select j.id from {table} j
            where j.id = u.id and j.claim_token = l.token and {leased} limit 1
        ) j
        where l.entrypoint = job.entrypoint
        limit 100
    ) as running
    from job
    where exists (select from {limits} m where m.entrypoint = job.entrypoint)
)
select (select count from before), (select running from limited), locker.pid, locker.age, locker.query
from job
left join lateral (
    select l.pid, clock_timestamp() - a.xact_start as age, left(a.query, 200) as query
    from pg_locks l
    left join pg_stat_activity a using (pid)
    where l.locktype = 'transactionid' and l.granted and job.locker <> '0'
      and l.transactionid::text = job.locker and l.pid <> pg_backend_pid()
    limit 1
) locker on true
