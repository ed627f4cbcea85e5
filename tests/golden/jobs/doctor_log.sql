-- doctor_log($1 log, $2 now)
select (select l.created from "holdfast_log" l order by l.id limit 1) as oldest,
       pg_stat_get_live_tuples($1::text::regclass) as rows,
       (select coalesce(sum(s.count), 0)::bigint from "holdfast_statistics" s
        where s.bucket > coalesce($2::timestamptz, clock_timestamp()) - interval '1 h') as last_hour
