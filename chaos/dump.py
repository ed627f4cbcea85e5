"""The product's own tables, written to the histories as they are at the end of a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import asyncpg

from chaos import snoozes, workload

if TYPE_CHECKING:
    from pathlib import Path


def _us(column: str) -> str:
    return f"(extract(epoch from {column}) * 1000000)::bigint"


_LOG = f"""
select id, job_id as j, status::text as s, entrypoint as ep, attempt as att, recoveries as rec,
       claimed_by as by, {_us("claimed_at")} as at, actor, reason as why,
       traceback is not null as tb, traceback ->> 'exception_type' as error, {_us("created")} as t
from holdfast_log order by id
"""

_QUEUE = f"""
select id as j, entrypoint as ep, status::text as s, attempts as att, recoveries as rec,
       claimed_by as by, {_us("claimed_at")} as at, {_us("heartbeat")} as hb,
       claim_token is not null as tok, {_us("execute_after")} as due, {_us("created")} as born,
       dedupe_key as key, {_us("held_at")} as held, headers ->> 'slot' as slot,
       payload is not null as has, convert_from(payload, 'UTF8') as payload
from holdfast order by id
"""

_LEASES = f"""
select worker as by, {_us("claimed_at")} as at, ids from holdfast_leases order by claimed_at
"""

_ROWS = f"""
select id as j, attempts as att, recoveries as rec, inactive, outcome, claimed_by as by,
       {_us("claimed_at")} as at, claim_token is not null as tok
from {workload.TABLE} order by id
"""

_SNOOZES = f"""
select id as j, subject as does, attempts as att, inactive, last_error as error
from {snoozes.TABLE} order by id
"""

_BREAKERS = "select name, state, generation, failures from holdfast_breakers order by name"

_CLOCK = f"select {_us('clock_timestamp()')} as t"

TABLES = {
    "log": _LOG,
    "queue": _QUEUE,
    "leases": _LEASES,
    "rows": _ROWS,
    "snoozes": _SNOOZES,
    "breakers": _BREAKERS,
    "clock": _CLOCK,
}


async def dump(dsn: str, directory: Path) -> None:
    """One snapshot of all tables, a file each."""
    connection: Any = await asyncpg.connect(dsn, timeout=10)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            for name, statement in TABLES.items():
                with (directory / f"{name}.jsonl").open("w") as lines:
                    async for row in connection.cursor(statement, prefetch=2000):
                        lines.write(json.dumps(dict(row), separators=(",", ":")) + "\n")
    finally:
        await connection.close()
