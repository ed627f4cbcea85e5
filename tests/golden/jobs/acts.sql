-- acts($1 limit)
select a.id, a.created, a.act, a.subject, a.actor, a.reason
from "holdfast_acts" a
order by a.id desc
limit $1::integer
