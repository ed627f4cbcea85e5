-- claim($1 now, $2 relaxed, $3 entrypoints, $4 floors, $5 floor_ids, $6 ceilings, $7 shares, $8 max_attempts, $9 priority, $10 token, $11 worker, $12 leases, $13 limited, $14 shortest)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now,
           case when $2::boolean then set_config('synchronous_commit', 'off', true) end
),
lane as materialized (
    select *
    from unnest(
        (select $3::text[]), (select $4::timestamptz[]),
        (select $5::bigint[]), (select $6::timestamptz[]),
        (select $7::integer[]), (select $8::integer[])
    ) as l(entrypoint, floor, floor_id, ceiling, share, max_attempts)
),
due as materialized (
    select c.id, c.place, c.spent
    from lane l
    cross join lateral (
        select *
        from (
            select j.id, j.ctid as place, j.attempts >= coalesce(j.max_attempts, l.max_attempts, 2147483647) as spent
            from "holdfast" j
            where j.held_at is null
              and j.entrypoint = l.entrypoint
              and j.priority = $9::integer
              and (j.execute_after, j.id) > (l.floor, l.floor_id)
              and j.execute_after <= least(l.ceiling, (select now from clock))
              and j.status = 'queued'::"holdfast_status" and coalesce(j.recoveries = 0, false)
            order by j.execute_after, j.id
            limit 1000
            for update skip locked
        ) j
        limit l.share
    ) c
),
picked as (
    update "holdfast" j
    set status = 'picked'::"holdfast_status", claim_token = $10::uuid, claimed_by = $11::text, claimed_at = clock.now, heartbeat = clock.now, lease = ($12::interval[])[array_position($3::text[], j.entrypoint)], updated = clock.now
    from clock
    where j.ctid = any(array(select place from due where not spent))
    returning j.id, j.entrypoint, j.payload, j.priority, j.execute_after, j.attempts, j.recoveries, j.max_attempts, j.max_recoveries, j.dedupe_key, j.headers, j.created, j.updated, j.last_error, j.last_error_at, j.held_at
),
retired as (
    update "holdfast" j
    set status = 'failed'::"holdfast_status", held_at = clock.now, updated = clock.now
    from clock
    where j.ctid = any(array(select place from due where spent))
    returning j.id, j.entrypoint, j.payload, j.priority, j.execute_after, j.attempts, j.recoveries, j.max_attempts, j.max_recoveries, j.dedupe_key, j.headers, j.created, j.updated, j.last_error, j.last_error_at, j.held_at
),
retired_log as (
    insert into "holdfast_log" (
        job_id, status, entrypoint, priority, attempt, recoveries, reason, created,
        enqueued_at, due_at
    )
    select id, 'failed'::"holdfast_status", entrypoint, priority, attempts, recoveries, 'max_attempts', updated,
           created, execute_after
    from retired
),
leased as (
    insert into "holdfast_leases" (token, worker, entrypoint, claimed_at, lease, ids)
    select $10::uuid, $11::text, $13::text, clock.now, $14::interval, taken.ids
    from clock, (select array_agg(id) as ids from picked) taken
    where taken.ids is not null
)
select id, entrypoint, case when octet_length(payload) <= 65536 then payload end, priority, date_part('epoch', execute_after), attempts, recoveries, max_attempts, max_recoveries, dedupe_key, headers, date_part('epoch', created), date_part('epoch', updated), last_error, date_part('epoch', last_error_at), date_part('epoch', held_at), case when octet_length(payload) > 65536 then octet_length(payload) end from picked
union all
select id, entrypoint, case when octet_length(payload) <= 65536 then payload end, priority, date_part('epoch', execute_after), attempts, recoveries, max_attempts, max_recoveries, dedupe_key, headers, date_part('epoch', created), date_part('epoch', updated), last_error, date_part('epoch', last_error_at), date_part('epoch', held_at), case when octet_length(payload) > 65536 then octet_length(payload) end from retired
