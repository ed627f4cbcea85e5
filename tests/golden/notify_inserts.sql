create or replace function "holdfast_notify_insert"() returns trigger
language plpgsql security invoker as $notify$
begin
    perform pg_catalog.pg_notify('ch_holdfast', '');
    return null;
end
$notify$;
drop trigger if exists holdfast_notify_inserts on "holdfast";
create trigger holdfast_notify_inserts
    after insert on "holdfast" for each statement execute function "holdfast_notify_insert"();