-- Jobs that a worker died with are claimed by a statement of their own, which finds them here. The
-- index is empty where no worker has died. A claim or a renewal changes none of its columns.
create index {prefix}_recovered on {table} (entrypoint, priority desc, execute_after, id)
    where held_at is null and recoveries > 0;
