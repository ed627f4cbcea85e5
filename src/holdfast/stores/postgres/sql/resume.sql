-- role: operator
-- Ends a pause, logs the actor, and wakes the workers. Index: primary key.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
),
gone as (
    delete from {pauses} p where p.name = :name::text
    returning p.name, p.until, p.actor, p.reason, p.created
),
logged as (
    insert into {acts} (created, act, subject, actor, reason)
    select clock.now, 'resume', gone.name, :actor::text, :reason::text from gone, clock
),
notified as (
    select pg_notify(:channel::text, '') where exists (select from gone)
)
select name, until, actor, reason, created from gone
where (select count(*) from notified) >= 0
  and (until is null or until > (select now from clock))
