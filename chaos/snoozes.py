"""A user's table without a column for deaths: the article's, with rows at every attempt."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from chaos.stage import Stage

TABLE = "email_snoozes"

DDL = f"""
create table {TABLE} (
    id bigserial primary key,
    user_email text not null,
    message_id text not null,
    subject text,
    sender_email text,
    remind_at timestamptz not null,
    snooze_duration_hours int,
    claimed_at timestamptz,
    claimed_by text,
    claim_token uuid,
    attempts int not null default 0,
    max_attempts int not null default 5,
    inactive boolean not null default false,
    last_error text,
    last_error_at timestamptz,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);
create index idx_{TABLE}_due on {TABLE} (inactive, claimed_at, remind_at);
create index idx_{TABLE}_claimed on {TABLE} (claimed_at) where claimed_at is not null;
"""

WORKER: Mapping[str, Any] = {"snoozes": True, "entrypoints": ("none",), "poll": 0.2}
"""Options of a worker that serves this table alone."""

_ADD = f"""
insert into {TABLE} (user_email, message_id, subject, remind_at, attempts, max_attempts,
                     last_error, last_error_at)
values ('ann@example.org', $1, $2, clock_timestamp(), $3, $4, $5,
        case when $5::text is not null then clock_timestamp() - interval '1 minute' end)
"""
_HELD = f"select count(*) from {TABLE} where claimed_by like '%:' || $1::text || ':%'"
_LEFT = f"select count(*) from {TABLE} where not inactive"


def states() -> Iterator[tuple[int, int, str | None]]:
    """Attempts, cap and last error: every number of attempts, with and without an error."""
    for cap in range(1, 6):
        for attempts in range(cap):
            for error in (None, "TimeoutError: no answer", "stale claim recovered"):
                yield attempts, cap, error


async def add(stage: Stage, does: Mapping[str, Any], deadly: tuple[int, ...] = ()) -> int:
    """One row in each state; those in `deadly` kill their worker. Returns the number of rows."""
    rows = []
    for number, (attempts, cap, error) in enumerate(states()):
        tells = {**does, "deadly": number in deadly, "attempts": attempts}
        rows.append((str(number), json.dumps(tells), attempts, cap, error))
    connection = await stage.connect()
    try:
        await connection.executemany(_ADD, rows)
    finally:
        await connection.close()
    return len(rows)


async def kill_crowds(stage: Stage, names: tuple[str, ...], seconds: float, seed: int) -> int:
    """Kill workers that hold several rows, again and again. Returns the number of deaths.

    A worker with a single row is spared: a row that runs alone when its worker dies is retired,
    and rightly so. The worker is stopped while its rows are counted, so that the count holds.
    """
    dice = random.Random(seed)
    connection = await stage.connect()
    loop = asyncio.get_running_loop()
    until, deaths = loop.time() + seconds, 0
    try:
        while loop.time() < until and await connection.fetchval(_LEFT):
            name = dice.choice(names)
            worker = stage.workers[name]
            if worker.alive:
                stage.freeze(name)
                if await connection.fetchval(_HELD, str(worker.pid)) > 1:
                    stage.fault("kill", name, hit=True)
                    stage.kill(name)
                    deaths += 1
                stage.thaw(worker)
            await asyncio.sleep(dice.uniform(0.05, 0.4))
    finally:
        await connection.close()
    return deaths
