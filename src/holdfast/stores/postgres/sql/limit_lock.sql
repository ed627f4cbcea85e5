-- role: worker
-- Locks the row of an entrypoint that has a limit of the whole fleet, until the transaction ends.
-- Promise: one claim under the limit at a time. A worker that is frozen while it has the lock loses
-- it, and a worker that waits goes on without it. No row comes back where there is none yet.
-- Index: primary key.
with patience as materialized (
    select set_config('lock_timeout', :wait::text, true) as lock_timeout,
           set_config('idle_in_transaction_session_timeout', '5s', true) as idle_timeout
)
select current_setting('transaction_isolation')
from patience, {limits} l
where l.entrypoint = :entrypoint::text
  and patience.lock_timeout is not null and patience.idle_timeout is not null
for no key update of l
