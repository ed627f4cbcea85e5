-- role: worker
-- The sessions that have locked the row of a limit. Index: primary key.
select a.pid, a.usename::text, a.application_name, a.state, clock_timestamp() - a.xact_start
from {limits} l, pg_locks k, pg_stat_activity a
where l.entrypoint = :entrypoint::text
  and k.locktype = 'transactionid' and k.granted and k.transactionid = l.xmax
  and a.pid = k.pid and a.pid <> pg_backend_pid()
