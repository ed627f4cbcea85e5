-- role: reader
-- The newest log rows of a stretch of time. Index: log_time.
select {log_columns} from {log} l
where (:within::interval is null
       or l.created > coalesce(:now::timestamptz, clock_timestamp()) - :within::interval)
  and (:status::text is null or l.status::text = :status::text)
  and (:entrypoint::text is null or l.entrypoint = :entrypoint::text)
order by l.created desc, l.id desc
limit :limit::integer
