-- page_rates_of($1 width, $2 now, $3 since)
select s.entrypoint, date_bin($1::interval, s.bucket, timestamptz '2000-01-01 00:00 UTC') as at,
       s.status, sum(s.count)::bigint, sum(s.busy)
from (select bucket, entrypoint, priority, status, count, busy from "holdfast_statistics"
      union all
      select bucket, entrypoint, priority, status, 1, busy from (select date_bin('1 minute', l.created, timestamptz '2000-01-01 00:00 UTC') as bucket,
               l.entrypoint, l.priority, l.status, l.created,
               coalesce(l.created - l.claimed_at, interval '0') as busy
        from "holdfast_log" l
        where l.tx >= (select case when c.tx <= s.newest then c.tx else
                           s.newest - ((s.newest - c.xmin::text::bigint) & 4294967295) + 1 end
                       from "holdfast_counted" c, (select greatest(pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_xact_id_if_assigned()::text::bigint) as newest) s)
          and l.tx <= (select s.newest from (select greatest(pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_xact_id_if_assigned()::text::bigint) as newest) s)
          and ((l.xmin::text::bigint - l.tx) & 4294967295) < 2147483648
        limit (select 50000)) u) s
where s.bucket >= coalesce($2::timestamptz, clock_timestamp()) - $3::interval
group by 1, 2, 3
limit 20000
