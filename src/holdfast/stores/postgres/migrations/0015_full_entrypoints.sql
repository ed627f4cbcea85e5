-- compatible: yes
-- Entrypoints whose own slots in a worker, such as its threads, are all in use. A worker of the version
-- before reports none.
alter table {workers} add column full_entrypoints text[] not null default '{{}}';
