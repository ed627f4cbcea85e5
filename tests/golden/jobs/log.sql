-- log($1 within, $2 now, $3 status, $4 entrypoint, $5 limit)
select l.id, l.job_id, l.status, l.entrypoint, l.priority, l.attempt, l.recoveries, l.claimed_by, l.claimed_at, l.actor, l.reason, l.traceback, l.created, l.enqueued_at, l.due_at, l.lease, l.fingerprint from "holdfast_log" l
where ($1::interval is null
       or l.created > coalesce($2::timestamptz, clock_timestamp()) - $1::interval)
  and ($3::text is null or l.status::text = $3::text)
  and ($4::text is null or l.entrypoint = $4::text)
order by l.created desc, l.id desc
limit $5::integer
