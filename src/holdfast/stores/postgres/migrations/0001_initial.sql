-- The tables of Holdfast. Names in braces are filled in from the prefix and schema.

create type {status} as enum (
    'queued', 'picked', 'successful', 'exception', 'failed', 'canceled', 'deleted'
);

-- A claim must be a heap-only update: no index below, in key or predicate, may mention a column
-- that a claim or a renewal changes (status, heartbeat, claim columns, updated). The fill factor
-- leaves room for the second version of every row beside the first; it is below 50 because a lease
-- makes a row larger, a small one by two thirds. What never changes comes first: the write-ahead
-- log holds of a new version only what lies between the first and the last byte that differ.
create table {table} (
    id              bigint generated always as identity primary key,
    created         timestamptz not null default clock_timestamp(),
    priority        integer not null default 0,
    max_recoveries  integer check (max_recoveries >= 1),
    entrypoint      text not null,
    dedupe_key      text,
    payload         bytea,
    headers         jsonb,
    max_attempts    integer check (max_attempts >= 1),
    status          {status} not null default 'queued',
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
    constraint {prefix}_lives_here check (status in ('queued', 'picked', 'failed')),
    constraint {prefix}_leased_while_picked check (
        num_nonnulls(claim_token, claimed_by, claimed_at, heartbeat, lease)
            = case when status = 'picked' then 5 else 0 end
    ),
    constraint {prefix}_held_while_failed check ((status = 'failed') = (held_at is not null))
) with (
    fillfactor = 40,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05
);

-- held_at is null means queued or picked: see the constraint above.
create index {prefix}_ready on {table} (entrypoint, priority desc, execute_after, id)
    where held_at is null;
create unique index {prefix}_dedupe_key on {table} (dedupe_key)
    where held_at is null and dedupe_key is not null;
create index {prefix}_held on {table} (created, id) where held_at is not null;

-- One row per claim statement: whose it is and which jobs it took. It finds the jobs of a dead
-- worker, and of a claim whose reply was lost, by primary key instead of an index on picked rows.
create table {leases} (
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
alter table {leases} alter column ids set storage external;

-- Append-only. tx lets the statistics find exactly the rows that were committed since last time.
create table {log} (
    id          bigint generated always as identity,
    job_id      bigint not null,
    status      {status} not null,
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
create index {prefix}_log_time on {log} using brin (created, tx)
    with (pages_per_range = 16, autosummarize = on);

create table {statistics} (
    bucket      timestamptz not null,
    entrypoint  text not null,
    priority    integer not null,
    status      {status} not null,
    count       bigint not null,
    busy        interval not null default interval '0',
    primary key (bucket, entrypoint, priority, status)
);

-- Up to which transaction the log is counted.
create table {counted} (
    only_row  boolean primary key default true check (only_row),
    tx        bigint not null
);
insert into {counted} (tx) values (0);

create table {schedules} (
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

create table {workers} (
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
