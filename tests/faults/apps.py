"""A worker for tests of real processes: `python -m tests.faults.apps '{"dsn": …, …}'`.

What a job does is said by its entrypoint and payload; what it did is said in a journal, a file to
which every process appends a line for each start and end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import uvloop

from holdfast import Holdfast, Job
from holdfast.stores.postgres.drivers import listening


@dataclass(frozen=True, slots=True)
class Plan:
    """How one worker process is to work."""

    dsn: str
    journal: str
    lease: float = 2.0
    concurrency: int = 50
    drain_timeout: float = 25.0
    dequeue_timeout: float = 5.0
    driver: str = "asyncpg"
    workers: int = 1
    connections: int | None = None
    ping_every: float = listening.PING_EVERY
    uvloop: bool = True

    def dumps(self) -> str:
        return json.dumps(asdict(self))


class Journal:
    """Lines of `event job pid`, appended whole even when the writer is killed after one."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, event: str, job: Job | None = None) -> None:
        os.write(self._file, f"{event} {job.id if job else 0} {os.getpid()}\n".encode())


def register(hf: Holdfast, journal: Journal) -> None:  # noqa: C901 - it only defines handlers
    @hf.entrypoint("nap")
    @hf.entrypoint("limited", concurrency_limit=2)
    @hf.entrypoint("serial", serialized_dispatch=True)
    async def nap(job: Job) -> None:
        """Sleep for as many seconds as the payload says."""
        journal.note("start", job)
        await asyncio.sleep(float(job.payload or b"0"))
        journal.note("end", job)

    @hf.entrypoint("hang_once")
    async def hang_once(job: Job) -> None:
        """Never end, unless this is the run after a recovery."""
        journal.note("start", job)
        if not job.recoveries:
            await asyncio.Event().wait()
        journal.note("end", job)

    @hf.entrypoint("wait_for_file")
    async def wait_for_file(job: Job) -> None:
        """End a second after the start, or after a recovery when the file of the payload exists."""
        goal = Path((job.payload or b"").decode())
        journal.note("start", job)
        try:
            await asyncio.sleep(1)
            while job.recoveries and not goal.exists():  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.02)
        finally:
            journal.note("end", job)

    @hf.entrypoint("gated")
    async def gated(job: Job) -> None:
        """End a second after the file of the payload exists."""
        goal = Path((job.payload or b"").decode())
        journal.note("start", job)
        while not goal.exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        journal.note("end", job)

    @hf.entrypoint("block")
    async def block(job: Job) -> None:
        """Keep the event loop from doing anything else."""
        journal.note("start", job)
        time.sleep(float(job.payload or b"0"))  # noqa: ASYNC251
        journal.note("end", job)

    @hf.entrypoint("poison")
    async def poison(job: Job) -> None:
        journal.note("start", job)
        os.kill(os.getpid(), signal.SIGKILL)


async def main(plan: Plan) -> None:
    journal = Journal(plan.journal)
    async with asyncio.TaskGroup() as group:
        for _ in range(plan.workers):
            group.create_task(work(plan, journal))
    journal.note("stopped")


async def work(plan: Plan, journal: Journal) -> None:
    async with Holdfast.connect(plan.dsn, driver=plan.driver) as hf:  # type: ignore[arg-type]
        register(hf, journal)
        journal.note("ready")
        await hf.run(
            heartbeat_timeout=timedelta(seconds=plan.lease),
            concurrency=plan.concurrency,
            drain_timeout=timedelta(seconds=plan.drain_timeout),
            dequeue_timeout=timedelta(seconds=plan.dequeue_timeout),
            connections=plan.connections,
        )


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    given = Plan(**json.loads(sys.argv[1]))
    listening.PING_EVERY = given.ping_every
    loop = uvloop.new_event_loop if given.uvloop else asyncio.SelectorEventLoop
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main(given))
