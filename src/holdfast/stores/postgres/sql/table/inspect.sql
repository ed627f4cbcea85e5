-- The rows that need attention: stuck, claimed, recovered, failed before, retired. One SELECT returns
-- their worker, age, failures, reason and next time (within the years that Python has).
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
)
select {key}::text,
       case
           when {claimed_at} is not null and {quiet} then 'stuck'
           when {claimed_at} is not null then 'claimed'
           when {inactive} then 'retired'
           when {suspect} then 'suspect'
           else 'retrying'
       end as state,
       {claimed_by}::text,
       (select now from clock) - {claimed_at},
       {attempts},
       {last_error}::text,
       case when {due} is not null then
           least(greatest({due}, '0001-01-02 00:00Z'), '9999-12-30 00:00Z')
       end
from {table} j
where ({claimed_at} is not null or {retired}
       or ({inactive} = false and ({attempts} > 0 or {recovered}))) {where}
order by {claimed_at} nulls last, {due}
limit :limit::integer
