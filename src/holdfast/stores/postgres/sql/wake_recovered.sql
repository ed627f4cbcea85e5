-- role: worker
-- Notifies every listener that jobs wait which a worker died with. Index: none.
-- Promise: nobody is notified when nobody needs it.
select pg_notify(:channel::text, 'recovered') where {needed}
