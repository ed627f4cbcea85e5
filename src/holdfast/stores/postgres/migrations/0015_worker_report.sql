-- compatible: yes
-- What a worker says of its entrypoints: which have no slot of their own left, such as a thread, and the
-- circuit breaker of each, in their order. A worker of the version before says neither.
alter table {workers}
    add column full_entrypoints text[] not null default '{{}}',
    add column breaker_names text[] not null default '{{}}';
