-- move($1 now, $2 worker, $3 force, $4 ids, $5 entrypoint, $6 actor, $7 reason, $8 channel)
with clock as materialized (
    -- A person may act on a stale lease at once. Only the sweep gives grace after an outage.
    select coalesce($1::timestamptz, clock_timestamp()) as now, null::timestamptz as since
),
here as materialized (
    select j.id, j.entrypoint, j.priority, j.dedupe_key, j.attempts, j.recoveries,
           j.created, j.execute_after, case when coalesce(j.status = 'picked'::"holdfast_status", false) then j.lease end as lease,
           j.status = 'queued'::"holdfast_status" as waiting, coalesce(j.status = 'picked'::"holdfast_status", false) as leased, j.status = 'failed'::"holdfast_status" as held,
           case when coalesce(j.status = 'picked'::"holdfast_status", false) then j.claimed_by end as claimed_by,
           case when coalesce(j.status = 'picked'::"holdfast_status", false) then j.claimed_at end as claimed_at,
           case when $2::text is null then $3::boolean or greatest(j.heartbeat, (select since from clock)) + j.lease <= (select now from clock)
                else j.claimed_by = $2::text end as may_end
    from "holdfast" j
    where j.id = any($4::bigint[])
    order by j.id
    for update of j
),
judged as materialized (
    select h.*, case
        when h.leased then h.may_end
        when $2::text is not null then false
        when h.waiting or h.dedupe_key is null then true
        else (
            select k.id from "holdfast" k
            where k.dedupe_key = h.dedupe_key and k.held_at is null limit 1
        ) is null
        and not exists (
            select from here o where o.held and o.dedupe_key = h.dedupe_key and o.id < h.id
        )
    end as free
    from here h
),
moved_waiting as (
    update "holdfast" j
    set status = 'queued'::"holdfast_status", entrypoint = coalesce($5::text, j.entrypoint), updated = clock.now
    from clock
    where j.id = any(array(select id from judged where free and waiting))
),
moved_leased as (
    update "holdfast" j
    set status = 'queued'::"holdfast_status", entrypoint = coalesce($5::text, j.entrypoint), updated = clock.now
    from clock
    where j.id = any(array(select id from judged where free and leased))
),
moved_held as (
    update "holdfast" j
    set status = 'queued'::"holdfast_status", entrypoint = coalesce($5::text, j.entrypoint), attempts = 0, recoveries = 0, execute_after = clock.now, held_at = null, updated = clock.now
    from clock
    where j.id = any(array(select id from judged where free and held))
),
logged as (
    insert into "holdfast_log" (
        job_id, status, entrypoint, priority, attempt, recoveries,
        claimed_by, claimed_at, actor, reason, created, enqueued_at, due_at, lease
    )
    select i.id, 'queued'::"holdfast_status", i.entrypoint, i.priority, i.attempts, i.recoveries,
           i.claimed_by, i.claimed_at, $6::text, $7::text, clock.now,
           i.created, i.execute_after, i.lease
    from judged i, clock
    where i.free
),
notified as (
    select pg_notify($8::text, 'cancel ' || id) from judged where free and leased
    union all
    select pg_notify($8::text, '') where exists (select from judged where free)
)
select id, free, leased from judged where (select count(*) from notified) >= 0
