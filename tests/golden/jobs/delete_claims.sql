-- delete_claims($1 tokens)
with durability as materialized (
    select set_config('synchronous_commit', 'off', true)
)
delete from "holdfast_leases" l
using durability
where l.token = any((select $1::uuid[])::uuid[])
