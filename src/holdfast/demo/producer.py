"""Enqueues the jobs of the demo and remembers their ids: the other side of the ledger."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast.demo.handlers import (
    BROKEN,
    DEFERRED,
    FAST,
    FLAKY,
    LATER,
    POISON,
    SLOW,
    UNIQUE,
)
from holdfast.models import JobId, NewJob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.client.queries import Queries

_STEP = 0.2
_HOUR = timedelta(hours=1)
_FAILS_TWICE, _ALWAYS_FAILS = b"2", b"99"


class Producer:
    """A steady stream: each step is one statement with several kinds of jobs."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self.ids: dict[str, list[JobId]] = defaultdict(list)
        self.skipped = 0
        """How often a dedupe key belonged to a job that had not ended."""
        self.canceled: set[JobId] = set()
        self.stopped = asyncio.Event()

    @property
    def enqueued(self) -> int:
        return sum(len(ids) for ids in self.ids.values())

    async def stream(self) -> None:
        """Enqueue until stopped. Not by cancelling: it must learn the ids of its jobs."""
        step = 0
        while not self.stopped.is_set():
            await self.add(_jobs(step))
            step += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(_STEP):
                    await self.stopped.wait()

    async def add(self, jobs: Sequence[NewJob]) -> list[JobId]:
        found = await self._queries.enqueue_many(jobs, on_conflict="skip")
        for job, job_id in zip(jobs, found, strict=True):
            if job_id is None:
                self.skipped += 1
            else:
                self.ids[job.entrypoint].append(job_id)
        return [job_id for job_id in found if job_id is not None]

    async def burst(self, count: int) -> None:
        """Many jobs in one statement."""
        await self.add([NewJob(FAST)] * count)

    async def poison(self) -> JobId:
        [job_id] = await self.add([NewJob(POISON, priority=10)])
        return job_id

    async def plan(self, count: int) -> None:
        """Jobs for later; some of them are cancelled before it is later."""
        planned = await self.add([NewJob(LATER, execute_after=_HOUR)] * count)
        self.canceled |= await self._queries.mark_job_as_cancelled(
            planned[: count // 2], actor="demo", reason="not needed any more"
        )


def _jobs(step: int) -> list[NewJob]:
    jobs = [NewJob(FAST)] * 8 + [NewJob(SLOW)] * 2
    # Offered again and again, this key is taken as long as its job has not ended.
    jobs.append(NewJob(UNIQUE, dedupe_key="the same invoice"))
    if step % 3 == 0:
        jobs.append(NewJob(FLAKY, _FAILS_TWICE))
        jobs.append(NewJob(DEFERRED, execute_after=timedelta(seconds=1 + step % 2)))
    if step % 10 == 2:
        jobs.append(NewJob(FLAKY, _ALWAYS_FAILS))
    if step % 12 == 4:
        jobs.append(NewJob(BROKEN, b"invoices.csv"))
    return jobs
