-- resume($1 now, $2 name, $3 actor, $4 reason, $5 channel)
with clock as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
),
gone as (
    delete from "holdfast_pauses" p where p.name = $2::text
    returning p.name, p.until, p.actor, p.reason, p.created
),
logged as (
    insert into "holdfast_acts" (created, act, subject, actor, reason)
    select clock.now, 'resume', gone.name, $3::text, $4::text from gone, clock
),
notified as (
    select pg_notify($5::text, '') where exists (select from gone)
)
select name, until, actor, reason, created from gone
where (select count(*) from notified) >= 0
  and (until is null or until > (select now from clock))
