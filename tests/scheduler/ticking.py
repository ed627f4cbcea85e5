"""A scheduler process for the tests: one tick a second, and no workers to speak of."""

from __future__ import annotations

import asyncio
import sys

import uvloop

from holdfast import Holdfast, Schedule


async def main(dsn: str) -> None:
    async with Holdfast.connect(dsn) as hf:

        @hf.schedule("every_second", "* * * * * *", misfire="all")
        async def every_second(schedule: Schedule) -> None:
            raise AssertionError("only the scheduler runs here")

        await hf.scheduler_manager.register()
        print("ready", flush=True)
        await hf.scheduler_manager.run()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1]))
