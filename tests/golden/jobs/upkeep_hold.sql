-- upkeep_hold($1 now, $2 duty, $3 token, $4 worker, $5 lasts)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now,
           set_config('synchronous_commit', 'off', true)
),
free as materialized (
    select u.duty
    from "holdfast_upkeep" u
    where u.duty = $2::text
      and (
          u.token = $3::uuid
          or u.expires <= (select now from clock)
          or u.expires > (select now from clock) + interval '10 minutes'
      )
    for update skip locked
),
held as (
    update "holdfast_upkeep" u
    set worker = $4::text, token = $3::uuid, expires = clock.now + $5::interval
    from clock
    where u.duty = any(array(select duty from free))
    returning u.duty
),
made as (
    insert into "holdfast_upkeep" (duty, worker, token, expires)
    select $2::text, $4::text, $3::uuid, clock.now + $5::interval
    from clock
    where not exists (select from "holdfast_upkeep" u where u.duty = $2::text)
    on conflict (duty) do nothing
    returning duty
)
select exists (select from held) or exists (select from made),
       (select count(*) from "holdfast_workers" w where w.heartbeat >= now - interval '1 minute'), now
from clock
