-- A log row says when its job was enqueued and due, so that waiting times stay known after the row has
-- left the queue; how long the lease was; and a mark that errors of one kind share. A previous
-- version's workers leave them null, and their rows are counted without a waiting time.
-- compatible: yes
alter table {log}
    add column enqueued_at timestamptz,
    add column due_at timestamptz,
    add column lease interval,
    add column fingerprint text;

-- How often each waiting and running time came, in the fixed steps of holdfast.histogram. Trailing
-- zeros are left out.
alter table {statistics}
    add column waited integer[] not null default '{{}}',
    add column ran integer[] not null default '{{}}';
-- Nobody asks what is in these arrays, so autovacuum need not sample them.
alter table {statistics} alter column waited set statistics 0, alter column ran set statistics 0;
