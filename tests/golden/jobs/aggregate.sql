-- aggregate()
with mark as materialized (
    select c.tx as lower,
           greatest(c.tx, pg_snapshot_xmin(pg_current_snapshot())::text::bigint) as upper
    from "holdfast_counted" c
    for update skip locked
),
fresh as materialized (
    select date_trunc('minute', l.created, 'UTC') as bucket, l.entrypoint, l.priority, l.status,
           count(*) as count, coalesce(sum(l.created - l.claimed_at), interval '0') as busy
    from "holdfast_log" l
    where l.tx >= (select lower from mark) and l.tx < (select upper from mark)
    group by 1, 2, 3, 4
),
added as (
    insert into "holdfast_statistics" as s (bucket, entrypoint, priority, status, count, busy)
    select * from fresh
    on conflict (bucket, entrypoint, priority, status) do update
    set count = s.count + excluded.count, busy = s.busy + excluded.busy
),
moved as (
    update "holdfast_counted" c set tx = mark.upper from mark
)
select coalesce(sum(count), 0)::bigint from fresh
