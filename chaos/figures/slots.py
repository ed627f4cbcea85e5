"""Schedulers that race for the ticks of a moved clock while they are killed."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.figures.base import Measured, figure
from chaos.figures.ticker import CLOCK, SCHEDULE
from chaos.stage import Stage

if TYPE_CHECKING:
    from chaos.cluster import Cluster

_ROOT = Path(__file__).parents[2]
_START = datetime(2031, 3, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_SLOTS = 100_000
_SCHEDULERS = 4
_KILL_EVERY = 8
"""Moves of the clock, on average."""

_FOUND = """
select count(*) as jobs, count(distinct headers ->> 'slot') as slots,
       min((headers ->> 'slot')::timestamptz) as first,
       max((headers ->> 'slot')::timestamptz) as last
from holdfast where entrypoint = $1
"""


@figure("schedule slots", "100,000 ticks while schedulers are killed: each makes exactly one job")
async def schedule_slots(cluster: Cluster, directory: Path) -> Measured:
    """The clock jumps by minutes; four schedulers race for every jump, and some die in it."""
    chance = random.Random(14)
    async with Stage(cluster, directory, probing=False) as stage:
        connection = await stage.connect()
        await connection.execute(f"create table {CLOCK} (now timestamptz)")
        await connection.execute(f"insert into {CLOCK} values ($1)", _START)
        crew = [_start(stage) for _ in range(_SCHEDULERS)]
        try:
            kills = await _move(stage, connection, crew, chance)
        finally:
            for process in crew:
                process.kill()
                process.wait()
        found = await connection.fetchrow(_FOUND, SCHEDULE)
        await connection.close()
    between = (found["last"] - found["first"]) // _SECOND + 1
    exact = found["jobs"] == found["slots"] == between >= _SLOTS
    values = {
        "slots": found["slots"],
        "jobs": found["jobs"],
        "missing": between - found["slots"],
        "kills": kills,
    }
    return Measured(exact, values)


def _start(stage: Stage) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    with (stage.directory / "tickers.log").open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "chaos.figures.ticker", stage.dsn],
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": paths},
            stdout=said,
            stderr=said,
        )


async def _move(
    stage: Stage, connection: Any, crew: list[subprocess.Popen[bytes]], chance: random.Random
) -> int:
    """How many schedulers were killed until the last tick was taken."""
    kills, clock = 0, _START
    end = _START + (_SLOTS + 1) * _SECOND

    async def taken() -> bool:
        return bool(
            await connection.fetchval(
                "select next_run > $2 from holdfast_schedules where name = $1", SCHEDULE, clock
            )
        )

    if not await stage.eventually(taken, 60):
        raise RuntimeError("no scheduler has registered itself")
    while clock < end:
        clock = min(end, clock + chance.randint(60, 600) * _SECOND)
        await connection.execute(f"update {CLOCK} set now = $1", clock)
        if chance.random() < 1 / _KILL_EVERY:
            await asyncio.sleep(chance.uniform(0.0, 0.03))
            victim = crew.pop(chance.randrange(len(crew)))
            victim.kill()
            victim.wait()
            crew.append(_start(stage))
            kills += 1
        if not await stage.eventually(taken, 60):
            raise RuntimeError(f"no scheduler takes the ticks before {clock}")
    return kills
