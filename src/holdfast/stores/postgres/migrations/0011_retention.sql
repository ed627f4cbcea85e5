-- compatible: yes
-- How long log rows are kept; null keeps them for ever. Whoever does the upkeep reads it.

create table {retention} (
    only_row    boolean primary key default true check (only_row),
    succeeded   interval default interval '30 days' check (succeeded > interval '0'),
    others      interval default interval '90 days' check (others > interval '0')
);
insert into {retention} default values;
