-- Counts the log rows committed since the last time into the statistics, those of so many
-- transactions at once. Index: log_time.
-- Promise: every row once, because a row is counted when its transaction is older than every
-- running one; a single counter at a time.
with running as materialized (
    select pg_snapshot_xmin(pg_current_snapshot())::text::bigint as tx
),
mark as materialized (
    select c.tx as lower, greatest(c.tx, least(r.tx, c.tx + :span::bigint)) as upper,
           r.tx > c.tx + :span::bigint as more
    from {counted} c
    cross join running r
    for update of c skip locked
),
fresh as materialized (
    select date_bin('1 minute', l.created, timestamptz '2000-01-01 00:00 UTC') as bucket, l.entrypoint, l.priority, l.status,
           count(*) as count, coalesce(sum(l.created - l.claimed_at), interval '0') as busy
    from {log} l
    where l.tx >= (select lower from mark) and l.tx < (select upper from mark)
    group by 1, 2, 3, 4
),
added as (
    insert into {statistics} as s (bucket, entrypoint, priority, status, count, busy)
    select * from fresh
    on conflict (bucket, entrypoint, priority, status) do update
    set count = s.count + excluded.count, busy = s.busy + excluded.busy
),
moved as (
    update {counted} c set tx = mark.upper from mark
)
select coalesce(sum(count), 0)::bigint, coalesce((select more from mark), false) from fresh
