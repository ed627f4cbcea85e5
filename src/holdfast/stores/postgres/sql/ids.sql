-- role: reader
-- The ids of jobs that were enqueued before an instant, upwards from one of them, in batches.
-- Index: primary key.
select j.id
from {table} j
where j.id > :after::bigint and j.created <= :before::timestamptz
  and (:entrypoints::text[] is null or j.entrypoint = any(:entrypoints::text[]))
order by j.id
limit :limit::integer
