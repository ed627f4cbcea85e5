-- role: reader
-- What people did that concerns no single job, newest first. Index: primary key, backwards.
select a.id, a.created, a.act, a.subject, a.actor, a.reason
from {acts} a
order by a.id desc
limit :limit::integer
