-- What people have paused: an entrypoint, a table queue, or everything, whose name is empty. Workers of
-- the version before go on working, and pause nothing.
-- compatible: yes
create table {pauses} (
    name     text primary key,
    until    timestamptz,
    actor    text,
    reason   text not null,
    created  timestamptz not null default clock_timestamp()
);

-- What people did that concerns no single job. A job's own log says what they did to it.
create table {acts} (
    id       bigint generated always as identity primary key,
    created  timestamptz not null default clock_timestamp(),
    act      text not null,
    subject  text not null,
    actor    text,
    reason   text
);
