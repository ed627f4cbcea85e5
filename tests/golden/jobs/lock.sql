-- lock($1 ids)
select j.id from "holdfast" j where j.id = any($1::bigint[]) order by j.id for update of j
