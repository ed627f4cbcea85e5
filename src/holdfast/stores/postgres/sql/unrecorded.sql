-- role: reader
-- How many jobs are leased under a claim without bookkeeping. Scans the whole table.
select count(*)
from {table} j
where j.claim_token is not null
  and not coalesce((
      select j.id = any(known.ids) from {leases} known where known.token = j.claim_token
  ), false)
