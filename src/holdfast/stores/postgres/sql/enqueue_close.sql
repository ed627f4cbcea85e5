-- role: producer
-- Ends all doubt about an enqueue: unless it has happened, it never will. Index: primary key.
insert into {enqueues} (key, created)
values (:key::uuid, coalesce(:now::timestamptz, clock_timestamp()))
on conflict do nothing
