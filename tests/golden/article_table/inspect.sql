-- inspect($1 now, $2 lease, $3 limit)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
)
select j."id"::text,
       case
           when j."claimed_at" is not null and j."claimed_at" <= (select now from clock) - $2::interval and j."claimed_at" <= (select now from clock) - $2::interval then 'stuck'
           when j."claimed_at" is not null then 'claimed'
           when j."inactive" then 'retired'
           when j."last_error" is not null and j."last_error_at" > j."remind_at" then 'suspect'
           else 'retrying'
       end as state,
       j."claimed_by"::text,
       (select now from clock) - j."claimed_at",
       coalesce(j."attempts", 0),
       j."last_error"::text,
       case when j."remind_at" is not null then
           least(greatest(j."remind_at", '0001-01-02 00:00Z'), '9999-12-30 00:00Z')
       end
from "email_snoozes" j
where (j."claimed_at" is not null or (j."inactive" and j."claimed_at" is null and (coalesce(j."attempts", 0) >= coalesce(j."max_attempts", 2147483647) or coalesce(j."last_error_at" >= j."updated_at", false)))
       or (j."inactive" = false and (coalesce(j."attempts", 0) > 0 or j."last_error" is not null and j."last_error_at" > j."remind_at")))
order by j."claimed_at" nulls last, j."remind_at"
limit $3::integer
