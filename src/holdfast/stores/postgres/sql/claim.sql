-- role: worker
-- Leases due jobs of one priority, one ordered walk of the ready index for each lane.
-- Promise: at most `share` rows of a lane, in order, none that another transaction has locked; a row
-- without attempts left is retired instead. Rendered four times: for jobs that no worker died with,
-- in large fleets with a place that it takes (claim_places.py), for recovered ones and for suspects.
-- Index: ready, from the lane's floor, or recovered, which has the few jobs that a worker died with;
-- the rows it locked are then found by their place. One that changed after the statement began is left to the next.
-- Behind a select the planner does not see how many lanes are asked for. Otherwise it makes a plan
-- for each number of them, every time, and that takes longer than a claim of one job.
-- A claim that a crash loses costs nothing (the job runs again), so it need not be fsynced.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now,
           case when :relaxed::boolean then set_config('synchronous_commit', 'off', true) end{takes_place}
),
lane as materialized (
    select *
    from unnest(
        (select :entrypoints::text[]), (select :floors::timestamptz[]),
        (select :floor_ids::bigint[]), (select :ceilings::timestamptz[]),
        (select :shares::integer[]), (select :max_attempts::integer[]){more_arrays}
    ) as l(entrypoint, floor, floor_id, ceiling, share, max_attempts{more_columns}){admitted}
),
due as materialized (
    select c.id, c.place, c.spent
    from lane l
    cross join lateral (
        select *
        from (
            select j.id, j.ctid as place, {spent} as spent
            from {table} j
            where j.held_at is null
              and j.entrypoint = l.entrypoint
              and j.priority = :priority::integer
              and (j.execute_after, j.id) > (l.floor, l.floor_id)
              and j.execute_after <= least(l.ceiling, (select now from clock))
              and {claimable} and {kind}
            order by j.execute_after, j.id
            limit {most}
            for update skip locked
        ) j
        limit l.share
    ) c
),
picked as (
    update {table} j
    set {claim}
    from clock
    where j.ctid = any(array(select place from due where not spent))
    returning {claimed_columns}
),
retired as (
    update {table} j
    set {retire}
    from clock
    where j.ctid = any(array(select place from due where spent))
    returning {claimed_columns}
),
retired_log as (
    insert into {log} (
        job_id, status, entrypoint, priority, attempt, recoveries, reason, created,
        enqueued_at, due_at
    )
    select id, {retired}, entrypoint, priority, attempts, recoveries, {retire_reason}, updated,
           created, execute_after
    from retired
),
leased as (
    insert into {leases} (token, worker, entrypoint, claimed_at, lease, ids)
    select :token::uuid, :worker::text, :limited::text, clock.now, :shortest::interval, taken.ids
    from clock, (select array_agg(id) as ids from picked) taken
    where taken.ids is not null
)
select {claimed_values} from picked
union all
select {claimed_values} from retired{refused}
