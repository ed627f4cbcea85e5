-- page_log_minutes($1 before, $2 status, $3 entrypoint)
select few.bucket, sum(few.count)::bigint
from (
    (select s.bucket, s.entrypoint, s.status, s.count from "holdfast_statistics" s
     where s.bucket <= $1::timestamptz
     order by s.bucket desc
     limit 50000)
    union all
    select u.bucket, u.entrypoint, u.status, 1 from (select date_bin('1 minute', l.created, timestamptz '2000-01-01 00:00 UTC') as bucket,
               l.entrypoint, l.priority, l.status, l.created,
               coalesce(l.created - l.claimed_at, interval '0') as busy
        from "holdfast_log" l
        where l.tx >= (select case when c.tx <= s.newest then c.tx else
                           s.newest - ((s.newest - c.xmin::text::bigint) & 4294967295) + 1 end
                       from "holdfast_counted" c, (select greatest(pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_xact_id_if_assigned()::text::bigint) as newest) s)
          and l.tx <= (select s.newest from (select greatest(pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_xact_id_if_assigned()::text::bigint) as newest) s)
          and ((l.xmin::text::bigint - l.tx) & 4294967295) < 2147483648
        limit (select 50000)) u
    where u.bucket <= $1::timestamptz
) few
where ($2::text is null or few.status::text = $2::text)
  and ($3::text is null or few.entrypoint = $3::text)
group by few.bucket
order by few.bucket desc
limit 60
