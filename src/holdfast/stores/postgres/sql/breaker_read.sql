-- role: reader
-- Some breakers, or all where no name is given, and the clock to judge them by.
-- Promise: takes no lock, so asking before every claim costs one look at a small table; there is
-- always a row, for the clock. Index: primary key.
with clock as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
)
select clock.now, b.revision, {breaker_columns}
from clock
left join {breakers} b on :names::text[] is null or b.name = any(:names::text[])
order by b.name collate "C"
