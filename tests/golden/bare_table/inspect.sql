-- inspect($1 now, $2 lease, $3 limit)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
)
select j."code"::text,
       case
           when j."claimed_at" is not null and j."claimed_at" <= (select now from clock) - $2::interval and j."claimed_at" <= (select now from clock) - $2::interval then 'stuck'
           when j."claimed_at" is not null then 'claimed'
           when j."inactive" then 'retired'
           when false then 'suspect'
           else 'retrying'
       end as state,
       null::text,
       (select now from clock) - j."claimed_at",
       coalesce(j."attempts", 0),
       null::text,
       case when j."ship_at" is not null then
           least(greatest(j."ship_at", '0001-01-02 00:00Z'), '9999-12-30 00:00Z')
       end
from "app"."orders" j
where (j."claimed_at" is not null or (j."inactive" and j."claimed_at" is null and (coalesce(j."attempts", 0) >= 5))
       or (j."inactive" = false and (coalesce(j."attempts", 0) > 0 or false)))
order by j."claimed_at" nulls last, j."ship_at"
limit $3::integer
