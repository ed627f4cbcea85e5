-- role: operator
-- Pauses an entrypoint, a table queue or everything, and logs the actor. Index: primary key.
-- Promise: a second pause replaces the first.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
),
put as (
    insert into {pauses} as p (name, until, actor, reason, created)
    select :name::text, coalesce(:until::timestamptz, clock.now + :lasts::interval),
           :actor::text, :reason::text, clock.now
    from clock
    on conflict (name) do update
    set until = excluded.until, actor = excluded.actor, reason = excluded.reason,
        created = excluded.created
    returning p.name, p.until, p.actor, p.reason, p.created
),
logged as (
    insert into {acts} (created, act, subject, actor, reason)
    select created, 'pause', name, actor, reason from put
)
select name, until, actor, reason, created from put
