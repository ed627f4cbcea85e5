-- free_connections()
select greatest(0, current_setting('max_connections')::integer
           - current_setting('superuser_reserved_connections')::integer
           - coalesce(current_setting('reserved_connections', true)::integer, 0)
           - (select coalesce(sum(numbackends), 0)::integer from pg_stat_database)
       )::float8 / current_setting('max_connections')::float8 as free
