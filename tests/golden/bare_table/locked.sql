-- locked($1 ids)
with patience as materialized (
    select set_config('lock_timeout', '100ms', true)
),
free as materialized (
    select j."code" as key
    from "app"."orders" j, patience
    where j."code" = any($1::text[])
    for update of j skip locked
)
select j."code"
from "app"."orders" j
where j."code" = any($1::text[]) and not exists (select from free where free.key = j."code")
