-- role: operator
-- Writes a breaker as the rules have decided it, if its row has not changed since it was read.
-- Promise: no lock is held between statements, and none is waited for: a worker that freezes, or a
-- transaction left open, does not stop others. No row back means that it must be read again.
-- Index: primary key.
with mine as materialized (
    select b.name
    from {breakers} b
    where b.name = :name::text and b.revision = :seen::bigint
    for update skip locked
)
update {breakers} b
set state = :state::text,
    generation = :generation::bigint,
    failures = :failures::integer,
    opened_at = :opened_at::timestamptz,
    cooldown = :cooldown::interval,
    probes = :probes::timestamptz[],
    actor = :actor::text,
    reason = :reason::text,
    updated = :updated::timestamptz,
    revision = b.revision + 1
from mine
where b.name = mine.name
returning b.name
