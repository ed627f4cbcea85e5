-- role: producer
-- Decides the outcome of an enqueue in doubt: if it has not happened yet, it never will.
-- Index: primary key.
insert into {enqueues} (key, created)
values (:key::uuid, coalesce(:now::timestamptz, clock_timestamp()))
on conflict do nothing
