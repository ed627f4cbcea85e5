"""The jobs of the demo: one handler for each outcome that a job can have."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from holdfast.app import Holdfast
from holdfast.embedded import SCHEME
from holdfast.executors import DatabaseRetryEntrypointExecutor

if TYPE_CHECKING:
    from holdfast.models import Job, Schedule

LEASE = timedelta(seconds=2)
"""Short, so that a reader can watch leases end. The default of thirty seconds is for real work."""

FAST, SLOW, FLAKY, BROKEN = "fast", "slow", "flaky", "broken"
DEFERRED, UNIQUE, POISON, TICK, LATER = "deferred", "unique", "poison", "tick", "later"
ENTRYPOINTS = (FAST, SLOW, FLAKY, BROKEN, DEFERRED, UNIQUE, POISON, TICK, LATER)

RETRIES = 3
SLOW_SECONDS = 1.0

_retrying = partial(
    DatabaseRetryEntrypointExecutor,
    max_attempts=RETRIES,
    initial_delay=timedelta(seconds=0.3),
    backoff_multiplier=1.5,
)


async def main(directory: str) -> Holdfast:
    """For `holdfast run holdfast.demo.handlers:main -- DIR`."""
    hf = Holdfast.connect(f"{SCHEME}{directory}")
    register(hf)
    return hf


def register(hf: Holdfast) -> None:
    """Register every handler of the demo."""
    hf.entrypoint(FAST)(fast)
    hf.entrypoint(SLOW)(slow)
    hf.entrypoint(FLAKY, executor_factory=_retrying)(flaky)
    hf.entrypoint(BROKEN, on_failure="hold")(broken)
    hf.entrypoint(DEFERRED)(fast)
    hf.entrypoint(LATER)(fast)
    hf.entrypoint(UNIQUE)(unique)
    hf.entrypoint(POISON, on_failure="hold")(poison)
    # "all": a tick that no worker was alive to fire is fired later, so every second has its job.
    hf.schedule(TICK, "* * * * * *", misfire="all")(tick)


async def fast(job: Job) -> None:
    await asyncio.sleep(0.01)


async def slow(job: Job) -> None:
    """Finishes although it was asked to stop, as code in a library might: its write comes late."""
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(SLOW_SECONDS)


async def flaky(job: Job) -> None:
    """Fails as often as its payload says."""
    if job.attempts < int(job.payload or b"0"):
        raise ConnectionError(f"run {job.attempts + 1}: the other side hung up")


async def broken(job: Job) -> None:
    raise ValueError("line 17 has no price")


async def unique(job: Job) -> None:
    await asyncio.sleep(0.4)


async def poison(job: Job) -> None:
    """Takes its whole worker down: no exception is raised, no code runs after this."""
    os.kill(os.getpid(), signal.SIGKILL)


async def tick(schedule: Schedule) -> None:
    await asyncio.sleep(0)
