-- Moves rows whose token is the one given; the row stays the only record of what happened.
-- `ids` is sorted without duplicates: width_bucket finds a row's place in it.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now, {patience}
)
update {table} j
set {sets}
from clock
where {key} = any(:ids::{key_type}[]) and {guards}
returning {key}
