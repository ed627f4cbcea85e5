-- recovered_waiting($1 now)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
ahead as materialized (
    select j."last_error" is not null and j."last_error_at" > j."remind_at" as recovered, j."last_error" is not null and j."last_error_at" > j."remind_at" as suspect
    from "email_snoozes" j
    where j."inactive" = false and j."claimed_at" is null and j."remind_at" <= (select now from clock) and coalesce(j."attempts", 0) < coalesce(j."max_attempts", 2147483647)
    order by j."claimed_at", j."remind_at", j."id"
    limit 1000
)
select exists (select from ahead where recovered and suspect is not true),
       exists (select from ahead where suspect),
       (select count(*) from "email_snoozes" j where j."inactive" = false and j."claimed_at" is not null and j."last_error" is not null and j."last_error_at" > j."remind_at" )
