-- Where each job is, or how it ended. Index: primary keys.
select j.id, j.status from {table} j where j.id = any(:ids::bigint[])
union all
select l.job_id, l.status from {log} l
where l.job_id = any(:ids::bigint[]) and l.status in {final}
