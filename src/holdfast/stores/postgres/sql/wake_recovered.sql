-- role: worker
-- Notifies every listener that jobs wait which a worker died with. Index: none.
-- Promise: no NOTIFY is sent when no worker needs it.
select pg_notify(:channel::text, 'recovered') where {needed}
