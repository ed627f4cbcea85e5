-- role: reader
-- How many jobs were enqueued above an id, up to 1,001. Index: primary key.
select count(*) from (select from {table} j where j.id > :after::bigint limit 1001) few
