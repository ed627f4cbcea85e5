-- role: worker
-- Adds the log rows committed since the last run to the statistics, a bounded number of
-- transactions at once. Index: log_time.
-- `wait` and `run` are positions in a histogram (holdfast.histogram).
-- Promise: every row is counted once, because a row is counted when its transaction is older than
-- every running one; one session counts at a time.
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
    where {on_duty}
    for update of c skip locked
),
mark as materialized (
    select s.tx as lower, greatest(s.tx, least(s.running, s.tx + :span::bigint)) as upper,
           s.running > s.tx + :span::bigint as more
    from start s
),
ended as (
    select date_bin('1 minute', l.created, timestamptz '2000-01-01 00:00 UTC') as bucket,
           l.entrypoint, l.priority, l.status, l.created - l.claimed_at as busy,
           width_bucket(date_part('epoch', l.claimed_at - l.due_at), {steps}) as wait,
           width_bucket(date_part('epoch', l.created - l.claimed_at), {steps}) as run
    from {log} l
    where l.tx >= (select lower from mark) and l.tx < (select upper from mark)
      -- A row written before the transaction that it names came from another server, and was
      -- counted there. Ids in xmin have 32 bits.
      and ((l.xmin::text::bigint - l.tx) & 4294967295) < 2147483648
),
cells as (
    -- One walk of the rows counts them by kind, by kind and waiting time, by kind and running time.
    select bucket, entrypoint, priority, status, wait, run, grouping(wait, run) as level,
           count(*) as count, sum(busy) as busy
    from ended
    group by grouping sets (
        (bucket, entrypoint, priority, status), (bucket, entrypoint, priority, status, wait),
        (bucket, entrypoint, priority, status, run)
    )
),
fresh as materialized (
    select bucket, entrypoint, priority, status, max(count) filter (where level = 3) as count,
           coalesce(max(busy) filter (where level = 3), interval '0') as busy,
           array_agg(wait) filter (where level = 1 and wait is not null) as waits,
           array_agg(count) filter (where level = 1 and wait is not null) as wait_counts,
           array_agg(run) filter (where level = 2 and run is not null) as runs,
           array_agg(count) filter (where level = 2 and run is not null) as run_counts
    from cells
    group by bucket, entrypoint, priority, status
),
added as (
    insert into {statistics} as s (bucket, entrypoint, priority, status, count, busy, waited, ran)
    select f.bucket, f.entrypoint, f.priority, f.status, f.count, f.busy,
           array(select coalesce(f.wait_counts[array_position(f.waits, n)], 0)
                 from generate_series(0, (select max(w) from unnest(f.waits) w)) n order by n),
           array(select coalesce(f.run_counts[array_position(f.runs, n)], 0)
                 from generate_series(0, (select max(r) from unnest(f.runs) r)) n order by n)
    from fresh f
    on conflict (bucket, entrypoint, priority, status) do update
    set count = s.count + excluded.count, busy = s.busy + excluded.busy,
        waited = array(select coalesce(a, 0) + coalesce(b, 0)
                       from unnest(s.waited, excluded.waited) with ordinality as u(a, b, n)
                       order by n),
        ran = array(select coalesce(a, 0) + coalesce(b, 0)
                    from unnest(s.ran, excluded.ran) with ordinality as u(a, b, n)
                    order by n)
),
moved as (
    update {counted} c set tx = mark.upper from mark
)
select coalesce(sum(count), 0)::bigint, coalesce((select more from mark), false) from fresh
