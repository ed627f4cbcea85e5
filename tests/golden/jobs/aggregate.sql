-- aggregate($1 span)
with running as materialized (
    select pg_snapshot_xmin(pg_current_snapshot())::text::bigint as tx
),
mark as materialized (
    select c.tx as lower, greatest(c.tx, least(r.tx, c.tx + $1::bigint)) as upper,
           r.tx > c.tx + $1::bigint as more
    from "holdfast_counted" c
    cross join running r
    for update of c skip locked
),
fresh as materialized (
    select date_bin('1 minute', l.created, timestamptz '2000-01-01 00:00 UTC') as bucket, l.entrypoint, l.priority, l.status,
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
select coalesce(sum(count), 0)::bigint, coalesce((select more from mark), false) from fresh
