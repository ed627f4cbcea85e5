create or replace function "holdfast_notify_insert"() returns trigger
language plpgsql security invoker as $notify$
begin
    if pg_catalog.current_setting('enqueued.into', true) = 'holdfast' then
        -- The mark is of one statement, and another may follow in this transaction.
        perform pg_catalog.set_config('enqueued.into', '', true);
    else
        perform pg_catalog.pg_notify('ch_holdfast', '');
    end if;
    return null;
end
$notify$;
drop trigger if exists holdfast_notify_inserts on "holdfast";
create trigger holdfast_notify_inserts
    after insert on "holdfast" for each statement execute function "holdfast_notify_insert"();