-- requeue($1 now, $2 ids, $3 max_attempts, $4 actor, $5 reason, $6 channel)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
here as materialized (
    select j.id, j.entrypoint, j.priority, j.dedupe_key, j.attempts, j.recoveries,
           j.created, j.execute_after, j.status = 'failed'::"holdfast_status" as held
    from "holdfast" j
    where j.id = any($2::bigint[])
    order by j.id
    for update of j
),
judged as materialized (
    select h.*, h.held and (
        h.dedupe_key is null
        or (
            (
                select k.id from "holdfast" k
                where k.dedupe_key = h.dedupe_key and k.held_at is null limit 1
            ) is null
            and not exists (
                select from here o where o.held and o.dedupe_key = h.dedupe_key and o.id < h.id
            )
        )
    ) as free
    from here h
),
changed as (
    update "holdfast" j
    set status = 'queued'::"holdfast_status", attempts = 0, recoveries = 0, execute_after = clock.now, held_at = null, updated = clock.now, max_attempts = coalesce($3::integer, j.max_attempts)
    from clock
    where j.id = any(array(select id from judged where free))
    returning j.id
),
logged as (
    insert into "holdfast_log" (
        job_id, status, entrypoint, priority, attempt, recoveries, actor, reason, created,
        enqueued_at, due_at
    )
    select i.id, 'queued'::"holdfast_status", i.entrypoint, i.priority, i.attempts, i.recoveries,
           $4::text, coalesce($5::text, null::text), clock.now,
           i.created, i.execute_after
    from judged i, clock
    where i.free
),
notified as (
    select pg_notify($6::text, '') where exists (select from changed)
)
select id, held, free from judged where (select count(*) from notified) >= 0
