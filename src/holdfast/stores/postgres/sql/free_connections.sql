-- role: worker
-- The share of the server's connections that this role may still open, from 0 to 1.
-- Reads no table of Holdfast's. Other databases are counted, and so are the server's own workers in a
-- database: the answer is rather too low than too high.
select greatest(0, current_setting('max_connections')::integer
           - current_setting('superuser_reserved_connections')::integer
           - coalesce(current_setting('reserved_connections', true)::integer, 0)
           - (select coalesce(sum(numbackends), 0)::integer from pg_stat_database)
       )::float8 / current_setting('max_connections')::float8 as free
