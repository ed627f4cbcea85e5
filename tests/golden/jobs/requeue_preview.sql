-- requeue_preview($1 ids)
with here as materialized (
    select j.id, j.dedupe_key, j.status = 'failed'::"holdfast_status" as held from "holdfast" j where j.id = any($1::bigint[])
)
select h.id, h.held, h.held and (
    h.dedupe_key is null
    or (
        (
            select k.id from "holdfast" k
            where k.dedupe_key = h.dedupe_key and k.held_at is null limit 1
        ) is null
        and not exists (
            select from here o where o.held and o.dedupe_key = h.dedupe_key and o.id < h.id
        )
    )
) as free
from here h
