-- claim:fleet($1 now, $2 relaxed, $3 heavy, $4 places, $5 channel, $6 place_of, $7 door, $8 entrypoints, $9 floors, $10 floor_ids, $11 ceilings, $12 shares, $13 max_attempts, $14 priority, $15 token, $16 worker, $17 leases, $18 limited, $19 shortest)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now,
           case when $2::boolean then set_config('synchronous_commit', 'off', true) end,
           case when $3::boolean then exists (
               select from generate_series(1, $4::integer) as place
               where pg_try_advisory_xact_lock(hashtextextended('claims of ' || $5::text || ' ' || $6::text, place + 1000 * (extract(epoch from coalesce($1::timestamptz, clock_timestamp()))::bigint / 5)))
           ) else pg_try_advisory_xact_lock_shared(hashtextextended('claims of ' || $5::text || ' ' || $6::text, $7::integer + 1000 * (extract(epoch from coalesce($1::timestamptz, clock_timestamp()))::bigint / 5))) and exists (
               select from generate_series(-3, -1) as place
               where pg_try_advisory_xact_lock(hashtextextended('claims of ' || $5::text || ' ' || $6::text, place + 1000 * (extract(epoch from coalesce($1::timestamptz, clock_timestamp()))::bigint / 5)))
           ) end as admitted
),
lane as materialized (
    select *
    from unnest(
        (select $8::text[]), (select $9::timestamptz[]),
        (select $10::bigint[]), (select $11::timestamptz[]),
        (select $12::integer[]), (select $13::integer[])
    ) as l(entrypoint, floor, floor_id, ceiling, share, max_attempts) where (select admitted from clock)
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
              and j.priority = $14::integer
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
    set status = 'picked'::"holdfast_status", claim_token = $15::uuid, claimed_by = $16::text, claimed_at = clock.now, heartbeat = clock.now, lease = ($17::interval[])[array_position($8::text[], j.entrypoint)], updated = clock.now
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
    select $15::uuid, $16::text, $18::text, clock.now, $19::interval, taken.ids
    from clock, (select array_agg(id) as ids from picked) taken
    where taken.ids is not null
)
select id, entrypoint, case when octet_length(payload) <= 65536 then payload end, priority, date_part('epoch', execute_after), attempts, recoveries, max_attempts, max_recoveries, dedupe_key, headers, date_part('epoch', created), date_part('epoch', updated), last_error, date_part('epoch', last_error_at), date_part('epoch', held_at), case when octet_length(payload) > 65536 then octet_length(payload) end from picked
union all
select id, entrypoint, case when octet_length(payload) <= 65536 then payload end, priority, date_part('epoch', execute_after), attempts, recoveries, max_attempts, max_recoveries, dedupe_key, headers, date_part('epoch', created), date_part('epoch', updated), last_error, date_part('epoch', last_error_at), date_part('epoch', held_at), case when octet_length(payload) > 65536 then octet_length(payload) end from retired
union all
select null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null from clock where not admitted
