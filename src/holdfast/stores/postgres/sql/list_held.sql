-- role: reader
-- The newest held jobs. Index: held.
select {seen} from {table} j
where j.held_at is not null
  and (:entrypoint::text is null or j.entrypoint = :entrypoint::text)
  and (:error::text is null or position(lower(:error::text) in lower(j.last_error)) > 0)
  and (:since::interval is null
       or j.held_at >= coalesce(:now::timestamptz, clock_timestamp()) - :since::interval)
  and (:older_than::interval is null
       or j.held_at < coalesce(:now::timestamptz, clock_timestamp()) - :older_than::interval)
order by j.created desc, j.id desc
limit :limit::integer
