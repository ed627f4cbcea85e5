-- clear_statistics($1 entrypoints)
with gone as (
    delete from "holdfast_statistics" s
    where $1::text[] is null or s.entrypoint = any($1::text[])
    returning 1
)
select count(*) from gone
