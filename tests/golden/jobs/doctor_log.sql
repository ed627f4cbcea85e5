-- doctor_log($1 before, $2 log, $3 now)
select (select l.created from "holdfast_log" l where l.created < $1::timestamptz limit 1) as overdue,
       pg_stat_get_live_tuples($2::text::regclass) as rows,
       (select coalesce(sum(s.count), 0)::bigint from "holdfast_statistics" s
        where s.bucket > coalesce($3::timestamptz, clock_timestamp()) - interval '1 h') as last_hour
