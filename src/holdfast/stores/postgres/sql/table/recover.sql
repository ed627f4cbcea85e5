-- Frees rows whose worker stopped renewing, or one known to be dead. A suspect that was running
-- alone is retired.
-- What was claimed or renewed before the end of the last outage gets a lease of grace from then on,
-- and its recovery is not counted.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now, {since} as since
),
stale as materialized (
    select {key} as key, not {excused} and {convicted} as convicted, {excused} as excused
    from {table} j
    where {picked} and {stale} {where}
      and (not {excused} or (select now - since from clock) >= :lease::interval)
      and not ({key} = any(:held_keys::{key_type}[])
               and coalesce({claim_token} = any(:held_tokens::uuid[]), false))
    order by {claimed_at}
    limit :limit::integer
    for update skip locked
),
recovered as (
    update {table} j set {recover} from clock
    where {key} = any(array(select key from stale where not convicted and not excused))
),
excused as (
    update {table} j set {excuse} from clock
    where {key} = any(array(select key from stale where excused))
),
retired as (
    update {table} j set {retire} from clock
    where {key} = any(array(select key from stale where convicted))
)
select key, convicted, excused from stale
