-- page_running()
select u.worker, j.entrypoint, count(*), min(j.claimed_at), min(j.heartbeat + j.lease)
from (
    select l.worker, l.token, i.id from "holdfast_leases" l cross join lateral unnest(l.ids) as i(id)
    limit 5000
) u
cross join lateral (
    select j.entrypoint, j.claimed_at, j.heartbeat, j.lease from "holdfast" j
    where j.id = u.id and j.claim_token = u.token and coalesce(j.status = 'picked'::"holdfast_status", false)
    limit 1
) j
group by u.worker, j.entrypoint
