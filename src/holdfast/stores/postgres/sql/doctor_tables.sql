-- Rows and sizes of the queue and of the log, by the server's own count, and the indexes of the queue
-- that are valid. Reads no table of Holdfast's.
select pg_stat_get_live_tuples(t.oid), pg_stat_get_dead_tuples(t.oid),
       greatest(pg_stat_get_last_vacuum_time(t.oid), pg_stat_get_last_autovacuum_time(t.oid)),
       (select coalesce(sum(pg_total_relation_size(p.relid)), 0)::bigint
        from pg_partition_tree(:log::text::regclass) p) as log_bytes,
       pg_indexes_size(t.oid) as index_bytes,
       pg_table_size(t.oid) as table_bytes,
       array(
           select i.relname::text from pg_index x join pg_class i on i.oid = x.indexrelid
           where x.indrelid = t.oid and x.indisvalid and x.indisready
       ) as valid_indexes,
       array(
           select i.relname::text from pg_index x join pg_class i on i.oid = x.indexrelid
           where x.indrelid = t.oid and not (x.indisvalid and x.indisready)
       ) as invalid_indexes
from pg_class t
where t.oid = :table::text::regclass
