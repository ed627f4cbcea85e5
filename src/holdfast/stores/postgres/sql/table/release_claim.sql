-- Releases the rows of a claim whose reply was lost.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
)
update {table} j
set {sets}
from clock
where {claimed_at} is not null and {claim_token} = any(:tokens::uuid[])
returning {key}
