-- role: reader
-- The workers as they last reported.
select w.id, w.host, w.pid, w.version, w.entrypoints, w.concurrency, w.running, w.state,
       w.started_at, w.heartbeat, w.heartbeat_timeout, w.full_entrypoints, w.breaker_names
from {workers} w
order by w.id collate "C"
