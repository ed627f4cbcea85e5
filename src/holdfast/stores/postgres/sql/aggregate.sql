-- Counts the log rows committed since the last time into the statistics, those of so many
-- transactions at once. Index: log_time.
-- Promise: every row once, because a row is counted when its transaction is older than every
-- running one; a single counter at a time.
with running as materialized (
    select pg_snapshot_xmin(pg_current_snapshot())::text::bigint as tx,
           pg_current_xact_id()::text::bigint as mine
),
start as materialized (
    -- No mark can be above the id of a running transaction, unless it was restored from another
    -- server, whose ids were higher. Then the count starts where the mark's row came to this one.
    select case
               when c.tx <= r.mine then c.tx
               else r.mine - ((r.mine - c.xmin::text::bigint) & 4294967295) + 1
           end as tx, r.tx as running
    from {counted} c
    cross join running r
    for update of c skip locked
),
mark as materialized (
    select s.tx as lower, greatest(s.tx, least(s.running, s.tx + :span::bigint)) as upper,
           s.running > s.tx + :span::bigint as more
    from start s
),
fresh as materialized (
    select date_bin('1 minute', l.created, timestamptz '2000-01-01 00:00 UTC') as bucket, l.entrypoint, l.priority, l.status,
           count(*) as count, coalesce(sum(l.created - l.claimed_at), interval '0') as busy
    from {log} l
    where l.tx >= (select lower from mark) and l.tx < (select upper from mark)
      -- A row written before the transaction that it names came from another server, and was
      -- counted there. Ids in xmin have 32 bits.
      and ((l.xmin::text::bigint - l.tx) & 4294967295) < 2147483648
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
