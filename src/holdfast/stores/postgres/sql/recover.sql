-- role: worker
-- Recovers or retires the jobs of workers that stopped renewing, or of one known to be dead.
-- `since` is the end of the last outage. Heartbeats before it get a lease of grace from then on,
-- and their recovery is not counted.
-- Promise: stale is judged under the row's lock; no lock is waited for. Index: primary key, with
-- the ids read from the claims that are older than their lease.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now, {since} as since
),
suspect as materialized (
    select u.id, l.token
    from {leases} l
    cross join lateral unnest(l.ids) as u(id)
    where ((:worker::text is null and l.claimed_at + l.lease <= (select now from clock))
           or l.worker = :worker::text)
      and {on_duty}
    order by u.id
),
cap as materialized (
    select * from unnest(:entrypoints::text[], :caps::integer[]) as c(entrypoint, max_recoveries)
),
stale as materialized (
    select c.*
    from suspect s
    cross join lateral (
        select j.id, j.entrypoint, j.priority, j.execute_after, j.attempts, j.recoveries,
               j.claimed_by, j.claimed_at, j.created, j.lease, {excused} as excused,
               not {excused} and j.recoveries + 1 >= greatest({least}, coalesce(
                   j.max_recoveries,
                   (select cap.max_recoveries from cap where cap.entrypoint = j.entrypoint),
                   :default_cap::integer
               )) as spent
        from {table} j
        where j.id = s.id and j.claim_token = s.token and {leased}
          and (:worker::text is not null or {stale})
          and not (j.id = any({ids}) and {owned})
        for update of j skip locked
    ) c
    limit :limit::integer
),
recovered as (
    update {table} j
    set {recover}
    from clock
    where j.id = any(array(select id from stale where not spent and not excused))
),
excused as (
    update {table} j
    set {excuse}
    from clock
    where j.id = any(array(select id from stale where excused))
),
retired as (
    update {table} j
    set {retire}
    from clock
    where j.id = any(array(select id from stale where spent))
),
logged as (
    insert into {log} (
        job_id, status, entrypoint, priority, attempt, recoveries,
        claimed_by, claimed_at, reason, created, enqueued_at, due_at, lease
    )
    select s.id, case when s.spent then {retired} else {recovered} end, s.entrypoint, s.priority,
           s.attempts, s.recoveries, s.claimed_by, s.claimed_at,
           case when s.excused then {excuse_reason} when s.spent then {retire_reason}
                else {recover_reason} end, clock.now, s.created, s.execute_after, s.lease
    from stale s, clock
),
notified as (
    select pg_notify(:channel::text, 'recovered') where exists (select from stale where not spent)
)
select id, spent, entrypoint, priority, execute_after, excused
from stale
where (select count(*) from notified) >= 0
order by id
