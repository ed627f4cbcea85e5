-- role: reader
-- Settings of the server, and the oldest transaction that keeps dead rows from being removed.
-- Reads no table of Holdfast's.
select pg_is_in_recovery() as standby, current_setting('fsync') = 'on' as fsync,
       current_setting('full_page_writes') = 'on' as full_page_writes,
       current_setting('synchronous_commit') as synchronous_commit,
       current_setting('autovacuum') = 'on' as autovacuum,
       pg_notification_queue_usage() as notify_usage,
       current_setting('max_connections')::integer
           - current_setting('superuser_reserved_connections')::integer
           - (select count(*)::integer from pg_stat_activity where backend_type = 'client backend')
           as connections_left,
       clock_timestamp() as now, oldest.pid, oldest.age, oldest.query
from (select) one
left join lateral (
    select a.pid, clock_timestamp() - a.xact_start as age, left(a.query, 120) as query
    from pg_stat_activity a
    where a.backend_xmin is not null and a.xact_start is not null and a.pid <> pg_backend_pid()
      and a.datname = current_database()
    order by a.xact_start
    limit 1
) oldest on true
