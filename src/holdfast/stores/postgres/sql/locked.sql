-- role: worker
-- Of these jobs, those that another transaction has locked. Index: primary key.
-- Asked when a change had to wait for one of them, so that the others need not.
with patience as materialized (
    select {patience}
),
free as materialized (
    select j.id
    from {table} j, patience
    where j.id = any(:ids::bigint[])
    for update of j skip locked
)
select j.id
from {table} j
where j.id = any(:ids::bigint[]) and not exists (select from free where free.id = j.id)
