-- role: operator
-- Raises the priority of the jobs that have these dedupe keys, and never lowers one; says which jobs
-- have them. One that runs is left as it is. Index: dedupe key.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
),
raised as (
    update {table} j
    set priority = (:priorities::integer[])[array_position(:dedupe_keys::text[], j.dedupe_key)],
        updated = clock.now
    from clock
    where j.dedupe_key = any(:dedupe_keys::text[]) and j.held_at is null and {claimable}
      and j.priority
          < (:priorities::integer[])[array_position(:dedupe_keys::text[], j.dedupe_key)]
    returning j.id
)
select j.dedupe_key, j.id
from {table} j
where j.dedupe_key = any(:dedupe_keys::text[]) and j.held_at is null
  and (select count(*) from raised) >= 0
