-- edit($1 now, $2 payload, $3 id, $4 actor, $5 reason)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
changed as (
    update "holdfast" j
    set status = 'failed'::"holdfast_status", payload = $2::bytea, updated = clock.now
    from clock
    where j.id = $3::bigint and j.status = 'failed'::"holdfast_status"
    returning j.id, j.status, j.entrypoint, j.priority, j.attempts, j.recoveries,
              j.created, j.execute_after
)
insert into "holdfast_log" (
    job_id, status, entrypoint, priority, attempt, recoveries, actor, reason, created,
    enqueued_at, due_at
)
select c.id, c.status, c.entrypoint, c.priority, c.attempts, c.recoveries,
       $4::text, coalesce($5::text, 'payload edited'), clock.now,
       c.created, c.execute_after
from changed c, clock
returning job_id
