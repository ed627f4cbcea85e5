-- role: worker
-- The number of dead and of live rows of the queue, by the server's own count. No row comes back where
-- this role may not vacuum the table (before version 17 only its owner may), or another session does:
-- trying would leave a warning in the server's log.
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
  and not exists (
      select from pg_locks l
      join pg_database d on d.oid = l.database and d.datname = current_database()
      where l.relation = c.oid and l.mode = 'ShareUpdateExclusiveLock'
  )
