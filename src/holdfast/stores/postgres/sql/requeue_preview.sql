-- role: reader
-- Says what a requeue of held jobs would do, without a lock. Index: primary key, dedupe key, one
-- probe a job. The verdict is that of requeue.sql.
with here as materialized (
    select j.id, j.dedupe_key, {held} as held from {table} j where j.id = any(:ids::bigint[])
)
select h.id, h.held, h.held and (
    h.dedupe_key is null
    or (
        (
            select k.id from {table} k
            where k.dedupe_key = h.dedupe_key and k.held_at is null limit 1
        ) is null
        and not exists (
            select from here o where o.held and o.dedupe_key = h.dedupe_key and o.id < h.id
        )
    )
) as free
from here h
