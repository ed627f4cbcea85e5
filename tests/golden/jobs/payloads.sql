-- payloads($1 held_ids, $2 tokens, $3 owners)
select j.id, j.payload
from "holdfast" j
where j.id = any(cast((select $1::text::bigint[]) as bigint[])) and j.claim_token = ($2::uuid[])[(cast((select $3::text::integer[]) as integer[]))[width_bucket(j.id, cast((select $1::text::bigint[]) as bigint[]))]] and coalesce(j.status = 'picked'::"holdfast_status", false)
