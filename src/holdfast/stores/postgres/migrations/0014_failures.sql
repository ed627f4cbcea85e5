-- compatible: yes
-- run: concurrently
-- The failures of late by the mark of their error, newest first, without a look at the rest of the log. A
-- lease that ends well has no mark, so its log row is not in it.
create index concurrently if not exists {prefix}_log_failures on {log} (status, created)
    include (entrypoint, fingerprint, job_id, id) where fingerprint is not null;
