"""A worker process whose handler calls a dependency that a file says is up, down or hanging."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import uvloop

from holdfast import BreakerPolicy, Holdfast, Job, RetryRequested

STRIPE = BreakerPolicy(
    "stripe",
    threshold=5,
    cooldown=timedelta(seconds=0.4),
    max_cooldown=timedelta(seconds=0.8),
    probe_lease=timedelta(seconds=1.5),
)
LEASE = timedelta(seconds=4)


def note(calls: Path, **what: object) -> None:
    """A line is short enough to be appended in one piece."""
    line = json.dumps({"pid": os.getpid(), **what}) + "\n"
    with calls.open("ab", buffering=0) as file:
        file.write(line.encode())


async def main(dsn: str, directory: Path) -> None:
    weather, calls = directory / "weather", directory / "calls"
    async with Holdfast.connect(dsn) as hf:

        @hf.entrypoint("pay", breaker=STRIPE, retry_timer=LEASE, max_attempts=None)
        async def pay(job: Job) -> None:
            found = weather.read_text()
            note(calls, job=job.id, weather=found)
            while weather.read_text() == "hanging":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.02)
            if found == "down":
                raise RetryRequested from ConnectionError("the dependency is down")

        await hf.run(concurrency=1, heartbeat_timeout=LEASE)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], Path(sys.argv[2])))
