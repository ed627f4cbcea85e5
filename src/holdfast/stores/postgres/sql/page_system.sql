-- role: reader
-- The size of each table, its live and dead rows, and when it was last vacuumed and analyzed.
select c.relname::text, pg_total_relation_size(c.oid), pg_stat_get_live_tuples(c.oid),
       pg_stat_get_dead_tuples(c.oid),
       greatest(pg_stat_get_last_vacuum_time(c.oid), pg_stat_get_last_autovacuum_time(c.oid)),
       greatest(pg_stat_get_last_analyze_time(c.oid), pg_stat_get_last_autoanalyze_time(c.oid))
from unnest(:tables::text[]) as t(name)
join pg_class c on c.oid = to_regclass(t.name)
order by 2 desc
