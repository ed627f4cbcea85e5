"""Workers in the event loop of a test, an observer of them, and waiting with a deadline."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.events import Claimed, Lost, Retired, Settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from holdfast import Holdfast, Job, JobId, LogEntry
    from holdfast.events import Event, Run
    from holdfast.worker.worker import Worker

T = TypeVar("T")

PATIENCE = 100.0
"""Seconds after which a test gives up; no test is meant to need them."""


async def ends(work: Awaitable[T]) -> T:
    """What the work returns, unless it outlasts the patience of the test."""
    async with asyncio.timeout(PATIENCE):
        return await work


async def eventually(true: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it holds: what happens in a database raises no event here."""
    async with asyncio.timeout(PATIENCE):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@asynccontextmanager
async def working(hf: Holdfast, **settings: Any) -> AsyncIterator[asyncio.Task[None]]:
    """A worker beside the block; it stops gracefully after it, and what it raises is raised."""
    run = asyncio.create_task(hf.run(**settings))
    try:
        yield run
    finally:
        hf.shutdown.set()
        await ends(run)


class Watch:
    """Hears what a worker tells its observers, and waits for it."""

    def __init__(self, *workers: Holdfast) -> None:
        self.events: list[Event] = []
        self._changed = asyncio.Event()
        for worker in workers:
            worker.observe(self)

    def notify(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    @property
    def settled(self) -> list[Run]:
        """Runs whose outcome is in the database, also those that a cap has ended."""
        ends = [event for event in self.events if isinstance(event, (Settled, Retired))]
        return [run for event in ends for run in event.runs]

    @property
    def lost(self) -> list[Lost]:
        return [event for event in self.events if isinstance(event, Lost)]

    @property
    def claims(self) -> list[Claimed]:
        return [event for event in self.events if isinstance(event, Claimed)]

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    async def until_settled(self, count: int = 1) -> list[Run]:
        await self.until(lambda: len(self.settled) >= count)
        return self.settled

    async def until_lost(self, count: int = 1) -> list[Lost]:
        await self.until(lambda: len(self.lost) >= count)
        return self.lost


class Gauge:
    """How many handlers run, and how many ever ran, at once."""

    def __init__(self) -> None:
        self.now = self.most = self.total = 0

    def __enter__(self) -> None:
        self.now += 1
        self.total += 1
        self.most = max(self.most, self.now)

    def __exit__(self, *failure: object) -> None:
        self.now -= 1


async def the_row(hf: Holdfast, job_id: JobId) -> Job:
    [job] = await hf.queries.get_jobs([job_id])
    return job


async def the_log(hf: Holdfast, job_id: JobId) -> list[LogEntry]:
    return await hf.queries.job_history(job_id)


async def ending(hf: Holdfast, job_id: JobId) -> LogEntry:
    """The only log row of a job."""
    [entry] = await the_log(hf, job_id)
    return entry


class ClaimBrake:
    """Makes every claim wait inside the server, after its lease has begun, for the test."""

    def __init__(self, witness: Any) -> None:
        self._witness = witness

    async def __aenter__(self) -> ClaimBrake:
        await self._witness.execute(
            "create function brake() returns trigger language plpgsql as"
            " $$ begin perform pg_advisory_xact_lock_shared(4711); return new; end $$;"
            " create trigger brake before update on holdfast for each row"
            " when (old.status = 'queued' and new.status = 'picked') execute function brake();"
            " select pg_advisory_lock(4711)"
        )
        return self

    async def until_braked(self) -> None:
        async def braked() -> bool:
            return await self._witness.fetchval(
                "select exists (select from pg_locks where locktype = 'advisory' and not granted"
                " and database = (select oid from pg_database where datname = current_database()))"
            )

        await eventually(braked)

    async def release(self) -> None:
        await self._witness.execute("select pg_advisory_unlock_all()")

    async def __aexit__(self, *failure: object) -> None:
        await self.release()


def say_which_process(job: Job) -> None:
    """At the top level, so that another process finds it."""
    raise ValueError(f"ran in {os.getpid()}")


def leave_the_process(job: Job) -> None:
    os._exit(7)


def worker_of(hf: Holdfast) -> Worker:
    """The parts of the present run."""
    worker = hf.queue_manager._worker
    assert worker is not None
    return worker
