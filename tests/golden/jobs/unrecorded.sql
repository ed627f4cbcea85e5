-- unrecorded()
select count(*)
from "holdfast" j
where j.claim_token is not null
  and not coalesce((
      select j.id = any(known.ids) from "holdfast_leases" known where known.token = j.claim_token
  ), false)
