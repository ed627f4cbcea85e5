-- statistics($1 since, $2 now, $3 limit)
select x.bucket, x.entrypoint, x.priority, x.status, sum(x.count)::bigint, sum(x.busy),
       max(x.waited), max(x.ran)
from (
    (select s.bucket, s.entrypoint, s.priority, s.status, s.count, s.busy, s.waited, s.ran
     from "holdfast_statistics" s
     where $1::interval is null
        or s.bucket >= coalesce($2::timestamptz, clock_timestamp()) - $1::interval
     order by s.bucket desc, s.entrypoint collate "C", s.priority, s.status::text collate "C"
     limit $3::integer)
    union all
    select u.bucket, u.entrypoint, u.priority, u.status, count(*), sum(u.busy), '{}', '{}'
    from (select date_bin('1 minute', l.created, timestamptz '2000-01-01 00:00 UTC') as bucket,
               l.entrypoint, l.priority, l.status, l.created,
               coalesce(l.created - l.claimed_at, interval '0') as busy
        from "holdfast_log" l
        where l.tx >= (select case when c.tx <= s.newest then c.tx else
                           s.newest - ((s.newest - c.xmin::text::bigint) & 4294967295) + 1 end
                       from "holdfast_counted" c, (select greatest(pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_xact_id_if_assigned()::text::bigint) as newest) s)
          and l.tx <= (select s.newest from (select greatest(pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_xact_id_if_assigned()::text::bigint) as newest) s)
          and ((l.xmin::text::bigint - l.tx) & 4294967295) < 2147483648
        limit (select 50000)) u
    where $1::interval is null
       or u.bucket >= coalesce($2::timestamptz, clock_timestamp()) - $1::interval
    group by u.bucket, u.entrypoint, u.priority, u.status
) x
group by x.bucket, x.entrypoint, x.priority, x.status
order by x.bucket desc, x.entrypoint collate "C", x.priority, x.status::text collate "C"
limit $3::integer
