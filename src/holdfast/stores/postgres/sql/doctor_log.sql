-- role: reader
-- The oldest row of the log, how many rows it has by the server's own count, and how many leases
-- ended in the last hour. Index: primary keys.
select (select l.created from {log} l order by l.id limit 1) as oldest,
       pg_stat_get_live_tuples(:log::text::regclass) as rows,
       (select coalesce(sum(s.count), 0)::bigint from {statistics} s
        where s.bucket > coalesce(:now::timestamptz, clock_timestamp()) - interval '1 h') as last_hour
