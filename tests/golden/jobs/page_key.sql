-- page_key($1 key)
select j.id from "holdfast" j where j.dedupe_key = $1::text and j.held_at is null limit 1
