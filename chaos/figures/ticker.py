"""A scheduler process under a moved clock: `python -m chaos.figures.ticker DSN`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import asyncpg

from chaos import leash
from holdfast import Holdfast, Schedule
from holdfast.clock import ManualClock

SCHEDULE = "every_second"
EXPRESSION = "* * * * * *"
CLOCK = "chaos_clock"
_PAUSE = 0.005


async def main(dsn: str) -> None:
    """Tick whenever the test has moved the clock, until killed."""
    clock = ManualClock()
    connection: Any = await asyncpg.connect(dsn)
    clock.set(await connection.fetchval(f"select now from {CLOCK}"))
    async with Holdfast.connect(dsn, clock=clock) as hf:

        @hf.schedule(SCHEDULE, EXPRESSION, misfire="all", overlap="allow")
        async def every_second(schedule: Schedule) -> None:
            raise AssertionError("only the scheduler runs here")

        await hf.scheduler_manager.register()
        print("ready", flush=True)
        while True:
            clock.set(await connection.fetchval(f"select now from {CLOCK}"))
            await hf.scheduler_manager.tick()
            await asyncio.sleep(_PAUSE)


if __name__ == "__main__":
    leash.tie()
    asyncio.run(main(sys.argv[1]))
