-- role: reader
-- The server, the oldest transaction on it, and the installed migrations.
select current_setting('server_version'), current_database()::text, current_user::text,
       pg_database_size(current_database()), pg_postmaster_start_time(),
       a.pid, a.application_name, a.state, a.xact_start,
       (select max(m.version) from {migrations} m)
from (select 1) one
left join lateral (
    select a.pid, a.application_name, a.state, a.xact_start
    from pg_stat_activity a
    where a.xact_start is not null and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
    order by a.xact_start
    limit 1
) a on true
