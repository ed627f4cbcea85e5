-- role: reader
-- A row of the log from before an instant, if there is one, how many rows it has by the server's own
-- count, and how many leases ended in the last hour. Index: log_time, primary key of the statistics.
select (select l.created from {log} l where l.created < :before::timestamptz limit 1) as overdue,
       pg_stat_get_live_tuples(:log::text::regclass) as rows,
       (select coalesce(sum(s.count), 0)::bigint from {statistics} s
        where s.bucket > coalesce(:now::timestamptz, clock_timestamp()) - interval '1 h') as last_hour
