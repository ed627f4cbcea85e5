-- breaker_write($1 name, $2 seen, $3 state, $4 generation, $5 failures, $6 opened_at, $7 cooldown, $8 probes, $9 actor, $10 reason, $11 updated)
with mine as materialized (
    select b.name
    from "holdfast_breakers" b
    where b.name = $1::text and b.revision = $2::bigint
    for update skip locked
)
update "holdfast_breakers" b
set state = $3::text,
    generation = $4::bigint,
    failures = $5::integer,
    opened_at = $6::timestamptz,
    cooldown = $7::interval,
    probes = $8::timestamptz[],
    actor = $9::text,
    reason = $10::text,
    updated = $11::timestamptz,
    revision = b.revision + 1
from mine
where b.name = mine.name
returning b.name
