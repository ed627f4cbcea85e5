-- aggregate($1 holder, $2 now, $3 span)
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
    from "holdfast_counted" c
    cross join running r
    where ($1::uuid is null or exists (select from "holdfast_upkeep" duty where duty.token = $1::uuid and duty.expires > coalesce($2::timestamptz, clock_timestamp())))
    for update of c skip locked
),
mark as materialized (
    select s.tx as lower, greatest(s.tx, least(s.running, s.tx + $3::bigint)) as upper,
           s.running > s.tx + $3::bigint as more
    from start s
),
ended as (
    select date_bin('1 minute', l.created, timestamptz '2000-01-01 00:00 UTC') as bucket,
           l.entrypoint, l.priority, l.status, l.created - l.claimed_at as busy,
           width_bucket(date_part('epoch', l.claimed_at - l.due_at), '{0.001,0.0014142135623730952,0.002,0.0028284271247461905,0.004,0.005656854249492381,0.008,0.011313708498984762,0.016,0.022627416997969524,0.032,0.04525483399593905,0.064,0.0905096679918781,0.128,0.1810193359837562,0.256,0.3620386719675124,0.512,0.7240773439350248,1.024,1.4481546878700495,2.048,2.896309375740099,4.096,5.792618751480198,8.192,11.585237502960396,16.384,23.170475005920792,32.768,46.340950011841585,65.536,92.68190002368317,131.072,185.36380004736634,262.144,370.7276000947327,524.288,741.4552001894654,1048.576,1482.9104003789307,2097.152,2965.8208007578614,4194.304,5931.641601515723,8388.608,11863.283203031446,16777.216,23726.56640606289,33554.432,47453.13281212578,67108.864,94906.26562425157,134217.728,189812.53124850313,268435.456,379625.06249700626,536870.912,759250.1249940125,1073741.824}'::double precision[]) as wait,
           width_bucket(date_part('epoch', l.created - l.claimed_at), '{0.001,0.0014142135623730952,0.002,0.0028284271247461905,0.004,0.005656854249492381,0.008,0.011313708498984762,0.016,0.022627416997969524,0.032,0.04525483399593905,0.064,0.0905096679918781,0.128,0.1810193359837562,0.256,0.3620386719675124,0.512,0.7240773439350248,1.024,1.4481546878700495,2.048,2.896309375740099,4.096,5.792618751480198,8.192,11.585237502960396,16.384,23.170475005920792,32.768,46.340950011841585,65.536,92.68190002368317,131.072,185.36380004736634,262.144,370.7276000947327,524.288,741.4552001894654,1048.576,1482.9104003789307,2097.152,2965.8208007578614,4194.304,5931.641601515723,8388.608,11863.283203031446,16777.216,23726.56640606289,33554.432,47453.13281212578,67108.864,94906.26562425157,134217.728,189812.53124850313,268435.456,379625.06249700626,536870.912,759250.1249940125,1073741.824}'::double precision[]) as run
    from "holdfast_log" l
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
    insert into "holdfast_statistics" as s (bucket, entrypoint, priority, status, count, busy, waited, ran)
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
    update "holdfast_counted" c set tx = mark.upper from mark
)
select coalesce(sum(count), 0)::bigint, coalesce((select more from mark), false) from fresh
