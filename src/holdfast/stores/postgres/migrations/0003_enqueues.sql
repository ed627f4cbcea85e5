-- One row per enqueue statement, under a key that its client made: a statement whose reply was lost
-- can be sent again, whatever has become of its jobs since. A row without ids closes the key for a
-- statement that may still be on its way. Keys begin with their client's time, so that new ones lie
-- together in the index; workers drop rows after an hour.

create table {enqueues} (
    key      uuid primary key,
    created  timestamptz not null,
    ids      bigint[],
    skipped  text[]
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
-- Compressing the ids of a large batch would cost more than writing them.
alter table {enqueues} alter column ids set storage external;
