-- The rows that ask for attention: stuck, claimed, failed before, retired. One SELECT answers who,
-- for how long, how often, why and when next.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
)
select {key}::text,
       case
           when {inactive} and {failed} then 'retired'
           when {claimed_at} is not null and {claimed_at} <= clock.now - :lease::interval
               then 'stuck'
           when {claimed_at} is not null then 'claimed'
           else 'retrying'
       end as state,
       {claimed_by}::text,
       clock.now - {claimed_at},
       {attempts},
       {last_error}::text,
       {due}
from {table} j, clock
where ({claimed_at} is not null or {attempts} > 0) and not ({inactive} and not ({failed}))
order by {claimed_at} nulls last, {due}
limit :limit::integer
