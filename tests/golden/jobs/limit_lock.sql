-- limit_lock($1 wait, $2 entrypoint)
with patience as materialized (
    select set_config('lock_timeout', $1::text, true) as lock_timeout,
           set_config('idle_in_transaction_session_timeout', '5s', true) as idle_timeout
)
select current_setting('transaction_isolation')
from patience, "holdfast_limits" l
where l.entrypoint = $2::text
  and patience.lock_timeout is not null and patience.idle_timeout is not null
for no key update of l
