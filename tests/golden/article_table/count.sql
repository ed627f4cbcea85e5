-- count($1 now)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
)
select count(*) filter (where j."inactive" = false and j."claimed_at" is null and j."remind_at" <= (select now from clock)),
       count(*) filter (where j."inactive" = false and j."claimed_at" is null and j."remind_at" > (select now from clock)),
       count(*) filter (where j."claimed_at" is not null),
       count(*) filter (where (j."inactive" and j."claimed_at" is null and (coalesce(j."attempts", 0) >= coalesce(j."max_attempts", 2147483647) or coalesce(j."last_error_at" >= j."updated_at", false)))),
       count(*) filter (where j."inactive" and j."claimed_at" is null and not (j."inactive" and j."claimed_at" is null and (coalesce(j."attempts", 0) >= coalesce(j."max_attempts", 2147483647) or coalesce(j."last_error_at" >= j."updated_at", false))))
from "email_snoozes" j
where true
