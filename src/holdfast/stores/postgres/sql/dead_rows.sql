-- How many rows of the queue are dead and how many are not, by the server's own count; nothing where
-- this role may not vacuum the table. Before version 17 only its owner may.
select pg_stat_get_dead_tuples(c.oid), pg_stat_get_live_tuples(c.oid)
from pg_class c
where c.oid = :table::text::regclass
  and (
      pg_has_role(c.relowner, 'usage')
      or case
          when current_setting('server_version_num')::integer >= 170000
          then has_table_privilege(c.oid, 'maintain')
      end
  )
