-- compatible: yes
-- Who does now what one worker does for all. A worker of the version before does it by itself.

create table {upkeep} (
    duty     text primary key,
    worker   text not null,
    token    uuid not null,
    expires  timestamptz not null
);
