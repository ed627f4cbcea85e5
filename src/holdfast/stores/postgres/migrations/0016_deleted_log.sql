-- Log rows that somebody deletes before they are counted are counted as they go, so that no DELETE or
-- TRUNCATE takes jobs out of the statistics. A row is counted by whoever has the row of the mark
-- locked: this, or the upkeep, which skips it meanwhile.
-- compatible: yes
create function {count_deleted}() returns trigger
-- The schema is that of the trigger's table, whatever the search path of the session is.
language plpgsql security invoker set search_path = pg_catalog, pg_temp as $count$
declare
    counted text := format('%I.%I', tg_table_schema, '{prefix}_counted');
    statistics text := format('%I.%I', tg_table_schema, '{prefix}_statistics');
    gone text := case tg_op
        when 'DELETE' then 'gone'
        else format('%I.%I', tg_table_schema, tg_table_name)
    end;
    mark text;
    lower bigint;
    upper bigint;
    uncounted boolean;
begin
    -- Ids above every transaction's are another server's, where such rows were counted. A mark above
    -- them was restored, and counts from where its row came to this server.
    mark := format(
        'select case when c.tx <= $1 then c.tx
                     else $1 - (($1 - c.xmin::text::bigint) & 4294967295) + 1 end from %s c',
        counted
    );
    upper := greatest(
        pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_xact_id()::text::bigint
    );
    execute mark into lower using upper;
    -- The mark only rises, so a deletion of rows below it is over here.
    execute format('select exists (select from %s where tx between $1 and $2)', gone)
        into uncounted using lower, upper;
    if uncounted is not true then
        return null;
    end if;
    execute mark || ' for update' into lower using upper;
    -- As the upkeep counts, in the steps of holdfast.histogram.
    execute format(
        $sql$
        with steps as materialized (
            select array_agg(0.001::float8 * 2::float8 ^ (n / 2.0::float8) order by n) as steps
            from generate_series(0, 60) n
        ),
        ended as (
            select date_bin('1 minute', l.created, timestamptz '2000-01-01 00:00 UTC') as bucket,
                   l.entrypoint, l.priority, l.status, l.created - l.claimed_at as busy,
                   width_bucket(date_part('epoch', l.claimed_at - l.due_at), s.steps) as wait,
                   width_bucket(date_part('epoch', l.created - l.claimed_at), s.steps) as run
            from %1$s l, steps s
            where l.tx between $1 and $2
        ),
        cells as (
            select bucket, entrypoint, priority, status, wait, run, grouping(wait, run) as level,
                   count(*) as count, sum(busy) as busy
            from ended
            group by grouping sets (
                (bucket, entrypoint, priority, status), (bucket, entrypoint, priority, status, wait),
                (bucket, entrypoint, priority, status, run)
            )
        ),
        fresh as (
            select bucket, entrypoint, priority, status,
                   max(count) filter (where level = 3) as count,
                   coalesce(max(busy) filter (where level = 3), interval '0') as busy,
                   array_agg(wait) filter (where level = 1 and wait is not null) as waits,
                   array_agg(count) filter (where level = 1 and wait is not null) as wait_counts,
                   array_agg(run) filter (where level = 2 and run is not null) as runs,
                   array_agg(count) filter (where level = 2 and run is not null) as run_counts
            from cells
            group by bucket, entrypoint, priority, status
        )
        insert into %2$s as s (bucket, entrypoint, priority, status, count, busy, waited, ran)
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
        $sql$,
        gone, statistics
    ) using lower, upper;
    return null;
end
$count$;

create trigger {prefix}_count_deleted
    after delete on {log} referencing old table as gone
    for each statement execute function {count_deleted}();
create trigger {prefix}_count_truncated
    before truncate on {log}
    for each statement execute function {count_deleted}();
