-- complete($1 now, $2 ids, $3 tokens, $4 reasons, $5 tracebacks)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
gone as (
    delete from "holdfast" j
    where j.id = any($2::bigint[]) and j.claim_token = ($3::uuid[])[width_bucket(j.id, $2::bigint[])]
    returning j.id, j.entrypoint, j.priority, j.attempts, j.recoveries, j.claimed_by, j.claimed_at,
              width_bucket(j.id, $2::bigint[]) as n
)
insert into "holdfast_log" (
    job_id, status, entrypoint, priority, attempt, recoveries,
    claimed_by, claimed_at, reason, traceback, created
)
select g.id, 'successful'::"holdfast_status", g.entrypoint, g.priority, g.attempts, g.recoveries, g.claimed_by,
       g.claimed_at, coalesce(($4::text[])[g.n], null::text),
       ($5::text[])[g.n]::jsonb, clock.now
from gone g, clock
returning job_id
