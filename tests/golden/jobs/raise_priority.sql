-- raise_priority($1 now, $2 priorities, $3 dedupe_keys)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
raised as (
    update "holdfast" j
    set priority = ($2::integer[])[array_position($3::text[], j.dedupe_key)],
        updated = clock.now
    from clock
    where j.dedupe_key = any($3::text[]) and j.held_at is null and j.status = 'queued'::"holdfast_status"
      and j.priority
          < ($2::integer[])[array_position($3::text[], j.dedupe_key)]
    returning j.id
)
select j.dedupe_key, j.id
from "holdfast" j
where j.dedupe_key = any($3::text[]) and j.held_at is null
  and (select count(*) from raised) >= 0
