-- Of these rows, those that another transaction has locked.
with patience as materialized (
    select {patience}
),
free as materialized (
    select {key} as key
    from {table} j, patience
    where {key} = any(:ids::{key_type}[])
    for update of j skip locked
)
select {key}
from {table} j
where {key} = any(:ids::{key_type}[]) and not exists (select from free where free.key = {key})
