-- role: pruner
-- Deletes the counts of these entrypoints, or all. There are few rows, and no index for it.
with gone as (
    delete from {statistics} s
    where :entrypoints::text[] is null or s.entrypoint = any(:entrypoints::text[])
    returning 1
)
select count(*) from gone
