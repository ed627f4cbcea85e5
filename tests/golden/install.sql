begin;
create table if not exists "holdfast_migrations" (
    version     integer primary key,
    name        text not null,
    applied_at  timestamptz not null default clock_timestamp(),
    compatible  boolean not null default false
);

-- The tables of Holdfast. Names in braces are filled in from the prefix and schema.

create type "holdfast_status" as enum (
    'queued', 'picked', 'successful', 'exception', 'failed', 'canceled', 'deleted'
);

-- A claim must be a heap-only update: no index below, in key or predicate, may mention a column
-- that a claim or a renewal changes (status, heartbeat, claim columns, updated). The fill factor
-- leaves room for the second version of every row beside the first; it is below 50 because a lease
-- makes a row larger, a small one by two thirds. What never changes comes first: the write-ahead
-- log holds of a new version only what lies between the first and the last byte that differ.
create table "holdfast" (
    id              bigint generated always as identity primary key,
    created         timestamptz not null default clock_timestamp(),
    priority        integer not null default 0,
    max_recoveries  integer check (max_recoveries >= 1),
    entrypoint      text not null,
    dedupe_key      text,
    payload         bytea,
    headers         jsonb,
    max_attempts    integer check (max_attempts >= 1),
    status          "holdfast_status" not null default 'queued',
    execute_after   timestamptz not null default clock_timestamp()
                        check (isfinite(execute_after)),
    attempts        integer not null default 0 check (attempts >= 0),
    recoveries      integer not null default 0 check (recoveries >= 0),
    updated         timestamptz not null default clock_timestamp(),
    heartbeat       timestamptz,
    claim_token     uuid,
    claimed_by      text,
    claimed_at      timestamptz,
    lease           interval,
    last_error      text,
    last_error_at   timestamptz,
    held_at         timestamptz,
    constraint holdfast_lives_here check (status in ('queued', 'picked', 'failed')),
    constraint holdfast_leased_while_picked check (
        num_nonnulls(claim_token, claimed_by, claimed_at, heartbeat, lease)
            = case when status = 'picked' then 5 else 0 end
    ),
    constraint holdfast_held_while_failed check ((status = 'failed') = (held_at is not null))
) with (
    fillfactor = 40,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05
);

-- held_at is null means queued or picked: see the constraint above.
create index holdfast_ready on "holdfast" (entrypoint, priority desc, execute_after, id)
    where held_at is null;
create unique index holdfast_dedupe_key on "holdfast" (dedupe_key)
    where held_at is null and dedupe_key is not null;
create index holdfast_held on "holdfast" (created, id) where held_at is not null;

-- One row per claim statement: whose it is and which jobs it took. It finds the jobs of a dead
-- worker, and of a claim whose reply was lost, by primary key instead of an index on picked rows.
create table "holdfast_leases" (
    token       uuid primary key,
    worker      text not null,
    entrypoint  text,
    claimed_at  timestamptz not null,
    lease       interval not null,
    ids         bigint[] not null
) with (
    -- The ids of a full batch stay in the row: compressing them would cost more than the claim's log.
    toast_tuple_target = 8160,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000
);
alter table "holdfast_leases" alter column ids set storage external;

-- Append-only. tx lets the statistics find exactly the rows that were committed since last time.
create table "holdfast_log" (
    id          bigint generated always as identity,
    job_id      bigint not null,
    status      "holdfast_status" not null,
    entrypoint  text not null,
    priority    integer not null,
    attempt     integer not null,
    recoveries  integer not null,
    claimed_by  text,
    claimed_at  timestamptz,
    actor       text,
    reason      text,
    traceback   jsonb,
    created     timestamptz not null default clock_timestamp(),
    tx          bigint not null default (pg_current_xact_id()::text::bigint),
    primary key (job_id, id)
);
create index holdfast_log_time on "holdfast_log" using brin (created, tx)
    with (pages_per_range = 16, autosummarize = on);

create table "holdfast_statistics" (
    bucket      timestamptz not null,
    entrypoint  text not null,
    priority    integer not null,
    status      "holdfast_status" not null,
    count       bigint not null,
    busy        interval not null default interval '0',
    primary key (bucket, entrypoint, priority, status)
);

-- Up to which transaction the log is counted.
create table "holdfast_counted" (
    only_row  boolean primary key default true check (only_row),
    tx        bigint not null
);
insert into "holdfast_counted" (tx) values (0);

create table "holdfast_schedules" (
    id          bigint generated always as identity primary key,
    name        text not null unique,
    expression  text not null,
    timezone    text not null default 'UTC',
    misfire     text not null default 'once' check (misfire in ('skip', 'once', 'all')),
    overlap     text not null default 'allow' check (overlap in ('skip', 'allow')),
    paused      boolean not null default false,
    next_run    timestamptz not null,
    last_run    timestamptz,
    created     timestamptz not null default clock_timestamp(),
    updated     timestamptz not null default clock_timestamp()
);

create table "holdfast_workers" (
    id           text primary key,
    host         text not null,
    pid          integer not null,
    version      text not null,
    entrypoints  text[] not null,
    concurrency  integer not null,
    running      integer not null,
    state        text not null,
    started_at   timestamptz not null,
    heartbeat    timestamptz not null
);

insert into "holdfast_migrations" (version, name, compatible) values (1, '0001_initial', false);

-- Circuit breakers, a row each. It stands alone and may be there already: a database whose queues
-- are tables of its own can have this table without the others.

create table if not exists "holdfast_breakers" (
    name        text primary key,
    state       text not null default 'closed',
    generation  bigint not null default 0 check (generation >= 0),
    failures    integer not null default 0 check (failures >= 0),
    opened_at   timestamptz,
    cooldown    interval not null default interval '0',
    probes      timestamptz[] not null default array[]::timestamptz[],
    actor       text,
    reason      text,
    updated     timestamptz not null default clock_timestamp(),
    -- Raised by every write, which names the value it was computed from.
    revision    bigint not null default 0,
    constraint holdfast_breaker_state check (state in ('closed', 'open', 'half_open')),
    constraint holdfast_opened_unless_closed check ((state = 'closed') = (opened_at is null)),
    constraint holdfast_probes_while_half_open check (
        state = 'half_open' or cardinality(probes) = 0
    ),
    constraint holdfast_held_while_open check (state = 'open' or num_nonnulls(actor, reason) = 0)
) with (fillfactor = 50);

insert into "holdfast_migrations" (version, name, compatible) values (2, '0002_breakers', false);

-- One row per enqueue statement, under a key that its client made: a statement whose reply was lost
-- can be sent again, whatever has become of its jobs since. A row without ids closes the key for a
-- statement that may still be on its way. Keys begin with their client's time, so that new ones lie
-- together in the index; workers drop rows after an hour.

create table "holdfast_enqueues" (
    key      uuid primary key,
    created  timestamptz not null,
    ids      bigint[],
    skipped  text[]
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
-- Compressing the ids of a large batch would cost more than writing them.
alter table "holdfast_enqueues" alter column ids set storage external;

insert into "holdfast_migrations" (version, name, compatible) values (3, '0003_enqueues', false);

-- Nobody asks what is in these arrays; to sample them took autovacuum up to a second a minute.
alter table "holdfast_enqueues" alter column ids set statistics 0, alter column skipped set statistics 0;
alter table "holdfast_leases" alter column ids set statistics 0;

-- The log is counted in bites of transactions: those before the first row need not be bitten.
update "holdfast_counted" set tx = coalesce(
    (select min(tx) from "holdfast_log"), pg_snapshot_xmin(pg_current_snapshot())::text::bigint
)
where tx = 0;

insert into "holdfast_migrations" (version, name, compatible) values (4, '0004_statistics', false);

-- A lease counts only while the row is picked. A person may set a picked row to queued without
-- clearing the columns of its lease; the next claim overwrites them. Every statement of a worker
-- names the state beside its token. A trigger that clears the columns would cost each renewal a
-- second write, even where it does not fire. Rows of before are stricter, so none is looked at.
alter table "holdfast"
    drop constraint holdfast_leased_while_picked,
    add constraint holdfast_leased_while_picked check (
        status <> 'picked'
        or num_nonnulls(claim_token, claimed_by, claimed_at, heartbeat, lease) = 5
    ) not valid;

-- What a worker was told as heartbeat_timeout; null from a version that does not report it.
alter table "holdfast_workers" add column heartbeat_timeout interval;

insert into "holdfast_migrations" (version, name, compatible) values (5, '0005_operators', false);

-- Jobs that a worker died with are claimed by a statement of their own, which finds them here. The
-- index is empty where no worker has died. A claim or a renewal changes none of its columns.
create index holdfast_recovered on "holdfast" (entrypoint, priority desc, execute_after, id)
    where held_at is null and recoveries > 0;

insert into "holdfast_migrations" (version, name, compatible) values (6, '0006_recovered', false);

-- One row for each entrypoint that has a limit of the whole fleet. A claim under the limit locks it.
-- To lock a row takes a privilege on the table. Any role that may connect can take an advisory lock.

create table "holdfast_limits" (
    entrypoint  text primary key
);

insert into "holdfast_migrations" (version, name, compatible) values (7, '0007_limits', false);

-- A log row says when its job was enqueued and due, so that waiting times stay known after the row has
-- left the queue; how long the lease was; and a mark that errors of one kind share. A previous
-- version's workers leave them null, and their rows are counted without a waiting time.
-- compatible: yes
alter table "holdfast_log"
    add column enqueued_at timestamptz,
    add column due_at timestamptz,
    add column lease interval,
    add column fingerprint text;

-- How often each waiting and running time came, in the fixed steps of holdfast.histogram. Trailing
-- zeros are left out.
alter table "holdfast_statistics"
    add column waited integer[] not null default '{}',
    add column ran integer[] not null default '{}';
-- Nobody asks what is in these arrays, so autovacuum need not sample them.
alter table "holdfast_statistics" alter column waited set statistics 0, alter column ran set statistics 0;

insert into "holdfast_migrations" (version, name, compatible) values (8, '0008_ledger', true);

-- What tasks returned, for those that store it. Written in the statement that ends the lease.
-- compatible: yes

create table "holdfast_results" (
    job_id      bigint primary key,
    -- JSON; null where it could not be stored, and then `error` says why.
    value       text,
    error       text,
    created     timestamptz not null,
    expires_at  timestamptz not null
);

create index holdfast_results_expiry on "holdfast_results" (expires_at);

insert into "holdfast_migrations" (version, name, compatible) values (9, '0009_results', true);

-- How far running jobs are, as their handlers last said.
-- compatible: yes

create table "holdfast_progress" (
    job_id      bigint primary key,
    fraction    real not null,
    message     text,
    updated     timestamptz not null
) with (fillfactor = 50);

insert into "holdfast_migrations" (version, name, compatible) values (10, '0010_progress', true);

-- compatible: yes
-- How long log rows are kept; null keeps them for ever. Whoever does the upkeep reads it.

create table "holdfast_retention" (
    only_row    boolean primary key default true check (only_row),
    succeeded   interval default interval '30 days' check (succeeded > interval '0'),
    others      interval default interval '90 days' check (others > interval '0')
);
insert into "holdfast_retention" default values;

insert into "holdfast_migrations" (version, name, compatible) values (11, '0011_retention', true);

-- What people have paused: an entrypoint, a table queue, or everything, whose name is empty. Workers of
-- the version before go on working, and pause nothing.
-- compatible: yes
create table "holdfast_pauses" (
    name     text primary key,
    until    timestamptz,
    actor    text,
    reason   text not null,
    created  timestamptz not null default clock_timestamp()
);

-- What people did that concerns no single job. A job's own log says what they did to it.
create table "holdfast_acts" (
    id       bigint generated always as identity primary key,
    created  timestamptz not null default clock_timestamp(),
    act      text not null,
    subject  text not null,
    actor    text,
    reason   text
);

insert into "holdfast_migrations" (version, name, compatible) values (12, '0012_pauses', true);

-- compatible: yes
-- Who does now what one worker does for all. A worker of the version before does it by itself.

create table "holdfast_upkeep" (
    duty     text primary key,
    worker   text not null,
    token    uuid not null,
    expires  timestamptz not null
);

insert into "holdfast_migrations" (version, name, compatible) values (13, '0013_upkeep', true);

-- compatible: yes
-- run: -- The failures of late by the mark of their error, newest first, without a look at the rest of the log. A
-- lease that ends well has no mark, so its log row is not in it.
create index if not exists holdfast_log_failures on "holdfast_log" (status, created)
    include (entrypoint, fingerprint, job_id, id) where fingerprint is not null;

insert into "holdfast_migrations" (version, name, compatible) values (14, '0014_failures', true);

-- compatible: yes
-- What a worker says of its entrypoints: which have no slot of their own left, such as a thread, and the
-- circuit breaker of each, in their order. A worker of the version before says neither.
alter table "holdfast_workers"
    add column full_entrypoints text[] not null default '{}',
    add column breaker_names text[] not null default '{}';

insert into "holdfast_migrations" (version, name, compatible) values (15, '0015_worker_report', true);

-- Log rows that somebody deletes before they are counted are counted as they go, so that no DELETE or
-- TRUNCATE takes jobs out of the statistics. A row is counted by whoever has the row of the mark
-- locked: this, or the upkeep, which skips it meanwhile.
-- compatible: yes
create function "holdfast_count_deleted"() returns trigger
-- The schema is that of the trigger's table, whatever the search path of the session is.
language plpgsql security invoker set search_path = pg_catalog, pg_temp as $count$
declare
    counted text := format('%I.%I', tg_table_schema, 'holdfast_counted');
    statistics text := format('%I.%I', tg_table_schema, 'holdfast_statistics');
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

create trigger holdfast_count_deleted
    after delete on "holdfast_log" referencing old table as gone
    for each statement execute function "holdfast_count_deleted"();
create trigger holdfast_count_truncated
    before truncate on "holdfast_log"
    for each statement execute function "holdfast_count_deleted"();

insert into "holdfast_migrations" (version, name, compatible) values (16, '0016_deleted_log', true);
commit;
