-- role: reader
-- The newest jobs of the queue table, filtered. Index: primary key, backwards.
select {seen} from {table} j
where (:status::text is null or j.status::text = :status::text)
  and (:entrypoint::text is null or j.entrypoint = :entrypoint::text)
order by j.id desc
limit :limit::integer
