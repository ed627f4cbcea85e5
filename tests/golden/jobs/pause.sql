-- pause($1 now, $2 name, $3 until, $4 lasts, $5 actor, $6 reason)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
put as (
    insert into "holdfast_pauses" as p (name, until, actor, reason, created)
    select $2::text, coalesce($3::timestamptz, clock.now + $4::interval),
           $5::text, $6::text, clock.now
    from clock
    on conflict (name) do update
    set until = excluded.until, actor = excluded.actor, reason = excluded.reason,
        created = excluded.created
    returning p.name, p.until, p.actor, p.reason, p.created
),
logged as (
    insert into "holdfast_acts" (created, act, subject, actor, reason)
    select created, 'pause', name, actor, reason from put
)
select name, until, actor, reason, created from put
