-- role: owner
-- Wakes workers when rows are inserted, whoever inserts them. PostgreSQL drops a second NOTIFY with
-- the same words in one transaction, so that an enqueue of Holdfast's own still sends one.
create or replace function {notify_insert}() returns trigger
language plpgsql security invoker as $notify$
begin
    perform pg_catalog.pg_notify('{channel}', '');
    return null;
end
$notify$;
drop trigger if exists {prefix}_notify_inserts on {table};
create trigger {prefix}_notify_inserts
    after insert on {table} for each statement execute function {notify_insert}();
