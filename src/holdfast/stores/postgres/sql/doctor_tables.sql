-- role: reader
-- Rows and sizes of the queue and of the log, by the server's own count, the indexes of the queue that
-- are valid, and the number of dead rows at which autovacuum begins. Reads no table of Holdfast's.
with options as materialized (
    select o.option_name as name, o.option_value as value
    from pg_class t cross join lateral pg_options_to_table(t.reloptions) o
    where t.oid = :table::text::regclass
)
select pg_stat_get_live_tuples(t.oid) as live, pg_stat_get_dead_tuples(t.oid) as dead,
       greatest(pg_stat_get_last_vacuum_time(t.oid), pg_stat_get_last_autovacuum_time(t.oid))
           as vacuumed,
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
       ) as invalid_indexes,
       coalesce((select value::boolean from options where name = 'autovacuum_enabled'), true)
           as autovacuum,
       (coalesce(
           (select value from options where name = 'autovacuum_vacuum_threshold'),
           current_setting('autovacuum_vacuum_threshold')
       )::float8 + greatest(t.reltuples, 0) * coalesce(
           (select value from options where name = 'autovacuum_vacuum_scale_factor'),
           current_setting('autovacuum_vacuum_scale_factor')
       )::float8)::bigint as vacuum_from,
       clock_timestamp() as now
from pg_class t
where t.oid = :table::text::regclass
