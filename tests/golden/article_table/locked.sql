-- locked($1 ids)
with patience as materialized (
    select set_config('lock_timeout', '100ms', true)
),
free as materialized (
    select j."id" as key
    from "email_snoozes" j, patience
    where j."id" = any($1::bigint[])
    for update of j skip locked
)
select j."id"
from "email_snoozes" j
where j."id" = any($1::bigint[]) and not exists (select from free where free.key = j."id")
