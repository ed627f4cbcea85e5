-- Circuit breakers, a row each. It stands alone and may be there already: a database whose queues
-- are tables of its own can have this table without the others.

create table if not exists {breakers} (
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
    constraint {prefix}_breaker_state check (state in ('closed', 'open', 'half_open')),
    constraint {prefix}_opened_unless_closed check ((state = 'closed') = (opened_at is null)),
    constraint {prefix}_probes_while_half_open check (
        state = 'half_open' or cardinality(probes) = 0
    ),
    constraint {prefix}_held_while_open check (state = 'open' or num_nonnulls(actor, reason) = 0)
) with (fillfactor = 50);
