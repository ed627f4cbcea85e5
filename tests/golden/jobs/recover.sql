-- recover($1 now, $2 lived, $3 contact, $4 asked, $5 worker, $6 holder, $7 entrypoints, $8 caps, $9 default_cap, $10 held_ids, $11 tokens, $12 owners, $13 limit, $14 channel)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now, greatest(case when $1::timestamptz is null and pg_postmaster_start_time() between clock_timestamp() - $2::interval and clock_timestamp() then pg_postmaster_start_time() end, coalesce($1::timestamptz, clock_timestamp()) - $3::interval, case when coalesce($1::timestamptz, clock_timestamp()) - $4::timestamptz > interval '1 second' then coalesce($1::timestamptz, clock_timestamp()) end) as since
),
suspect as materialized (
    select u.id, l.token
    from "holdfast_leases" l
    cross join lateral unnest(l.ids) as u(id)
    where (($5::text is null and l.claimed_at + l.lease <= (select now from clock))
           or l.worker = $5::text)
      and ($6::uuid is null or exists (select from "holdfast_upkeep" duty where duty.token = $6::uuid and duty.expires > coalesce($1::timestamptz, clock_timestamp())))
    order by u.id
),
cap as materialized (
    select * from unnest($7::text[], $8::integer[]) as c(entrypoint, max_recoveries)
),
stale as materialized (
    select c.*
    from suspect s
    cross join lateral (
        select j.id, j.entrypoint, j.priority, j.execute_after, j.attempts, j.recoveries,
               j.claimed_by, j.claimed_at, j.created, j.lease, ($5::text is null and coalesce(j.heartbeat < (select since from clock), false)) as excused,
               not ($5::text is null and coalesce(j.heartbeat < (select since from clock), false)) and j.recoveries + 1 >= greatest(2, coalesce(
                   j.max_recoveries,
                   (select cap.max_recoveries from cap where cap.entrypoint = j.entrypoint),
                   $9::integer
               )) as spent
        from "holdfast" j
        where j.id = s.id and j.claim_token = s.token and coalesce(j.status = 'picked'::"holdfast_status", false)
          and ($5::text is not null or greatest(j.heartbeat, (select since from clock)) + j.lease <= (select now from clock))
          and not (j.id = any(cast((select $10::text::bigint[]) as bigint[])) and j.claim_token = ($11::uuid[])[(cast((select $12::text::integer[]) as integer[]))[width_bucket(j.id, cast((select $10::text::bigint[]) as bigint[]))]])
        for update of j skip locked
    ) c
    limit $13::integer
),
recovered as (
    update "holdfast" j
    set status = 'queued'::"holdfast_status", recoveries = j.recoveries + 1, last_error = coalesce(j.last_error, 'stale claim recovered'), last_error_at = clock.now, claim_token = null, claimed_by = null, claimed_at = null, heartbeat = null, lease = null, updated = clock.now
    from clock
    where j.id = any(array(select id from stale where not spent and not excused))
),
excused as (
    update "holdfast" j
    set status = 'queued'::"holdfast_status", claim_token = null, claimed_by = null, claimed_at = null, heartbeat = null, lease = null, updated = clock.now
    from clock
    where j.id = any(array(select id from stale where excused))
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
        claimed_by, claimed_at, reason, created, enqueued_at, due_at, lease
    )
    select s.id, case when s.spent then 'failed'::"holdfast_status" else 'queued'::"holdfast_status" end, s.entrypoint, s.priority,
           s.attempts, s.recoveries, s.claimed_by, s.claimed_at,
           case when s.excused then 'outage' when s.spent then 'crash_loop'
                else 'lease_expired' end, clock.now, s.created, s.execute_after, s.lease
    from stale s, clock
),
notified as (
    select pg_notify($14::text, 'recovered') where exists (select from stale where not spent)
)
select id, spent, entrypoint, priority, execute_after, excused
from stale
where (select count(*) from notified) >= 0
order by id
