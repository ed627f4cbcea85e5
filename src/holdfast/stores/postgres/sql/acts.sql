-- role: reader
-- Acts of people that concern no single job, newest first. Index: primary key, backwards.
select a.id, a.created, a.act, a.subject, a.actor, a.reason
from {acts} a
order by a.id desc
limit :limit::integer
