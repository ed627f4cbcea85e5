-- recover($1 now, $2 worker, $3 entrypoints, $4 caps, $5 default_cap, $6 limit, $7 channel)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
suspect as materialized (
    select u.id, l.token
    from "holdfast_leases" l
    cross join lateral unnest(l.ids) as u(id)
    where ($2::text is null and l.claimed_at + l.lease <= (select now from clock))
       or l.worker = $2::text
    order by u.id
),
cap as materialized (
    select * from unnest($3::text[], $4::integer[]) as c(entrypoint, max_recoveries)
),
stale as materialized (
    select c.*
    from suspect s
    cross join lateral (
        select j.id, j.entrypoint, j.priority, j.execute_after, j.attempts, j.recoveries,
               j.claimed_by, j.claimed_at, j.recoveries + 1 >= coalesce(
                   j.max_recoveries,
                   (select cap.max_recoveries from cap where cap.entrypoint = j.entrypoint),
                   $5::integer
               ) as spent
        from "holdfast" j
        where j.id = s.id and j.claim_token = s.token and ($2::text is not null or j.heartbeat + j.lease <= (select now from clock))
        for update of j skip locked
    ) c
    limit $6::integer
),
recovered as (
    update "holdfast" j
    set status = 'queued'::"holdfast_status", recoveries = j.recoveries + 1, last_error = coalesce(j.last_error, 'stale claim recovered'), last_error_at = clock.now, claim_token = null, claimed_by = null, claimed_at = null, heartbeat = null, lease = null, updated = clock.now
    from clock
    where j.id = any(array(select id from stale where not spent))
),
retired as (
    update "holdfast" j
    set status = 'failed'::"holdfast_status", recoveries = j.recoveries + 1, last_error = coalesce(j.last_error, 'stale claim recovered'), last_error_at = clock.now, claim_token = null, claimed_by = null, claimed_at = null, heartbeat = null, lease = null, held_at = clock.now, updated = clock.now
    from clock
    where j.id = any(array(select id from stale where spent))
),
logged as (
    insert into "holdfast_log" (
        job_id, status, entrypoint, priority, attempt, recoveries,
        claimed_by, claimed_at, reason, created
    )
    select s.id, case when s.spent then 'failed'::"holdfast_status" else 'queued'::"holdfast_status" end, s.entrypoint, s.priority,
           s.attempts, s.recoveries, s.claimed_by, s.claimed_at,
           case when s.spent then 'crash_loop' else 'lease_expired' end, clock.now
    from stale s, clock
),
told as (
    select pg_notify($7::text, '') where exists (select from stale where not spent)
)
select id, spent, entrypoint, priority, execute_after
from stale
where (select count(*) from told) >= 0
order by id
