-- role: owner
-- Wakes workers when rows are inserted, whoever inserts them. An enqueue of Holdfast's own is left
-- alone: it has chosen whom to wake, and names its tables in a setting of the transaction.
create or replace function {notify_insert}() returns trigger
language plpgsql security invoker as $notify$
begin
    if pg_catalog.current_setting('enqueued.into', true) = '{prefix}' then
        -- The mark is of one statement, and another may follow in this transaction.
        perform pg_catalog.set_config('enqueued.into', '', true);
    else
        perform pg_catalog.pg_notify('{channel}', '');
    end if;
    return null;
end
$notify$;
drop trigger if exists {prefix}_notify_inserts on {table};
create trigger {prefix}_notify_inserts
    after insert on {table} for each statement execute function {notify_insert}();
