-- role: worker
-- Takes a duty that no worker has, or keeps it. Also counts the workers that are alive.
-- Promise: one of several that ask at once gets it. A row that another session has locked is not
-- waited for. An expiry far ahead was written before the clock was set back, and keeps no worker from it.
-- Index: primary key; the table has a row for each duty.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now,
           set_config('synchronous_commit', 'off', true)
),
free as materialized (
    select u.duty
    from {upkeep} u
    where u.duty = :duty::text
      and (
          u.token = :token::uuid
          or u.expires <= (select now from clock)
          or u.expires > (select now from clock) + interval '10 minutes'
      )
    for update skip locked
),
held as (
    update {upkeep} u
    set worker = :worker::text, token = :token::uuid, expires = clock.now + :lasts::interval
    from clock
    where u.duty = any(array(select duty from free))
    returning u.duty
),
made as (
    insert into {upkeep} (duty, worker, token, expires)
    select :duty::text, :worker::text, :token::uuid, clock.now + :lasts::interval
    from clock
    where not exists (select from {upkeep} u where u.duty = :duty::text)
    on conflict (duty) do nothing
    returning duty
)
select exists (select from held) or exists (select from made),
       (select count(*) from {workers} w where w.heartbeat >= now - interval '1 minute'), now
from clock
