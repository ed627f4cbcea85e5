-- history($1 job_id)
select l.id, l.job_id, l.status, l.entrypoint, l.priority, l.attempt, l.recoveries, l.claimed_by, l.claimed_at, l.actor, l.reason, l.traceback, l.created, l.enqueued_at, l.due_at, l.lease, l.fingerprint from "holdfast_log" l where l.job_id = $1::bigint order by l.id
