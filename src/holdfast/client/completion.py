"""Waits for the ends of jobs, for programs that enqueue and need the status of each."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from holdfast.client.job_checks import check_ids
from holdfast.client.queries import Queries
from holdfast.client.waiting import lasting
from holdfast.errors import ConnectionFailed, ConnectionLost, InvalidInput, JobNotFound
from holdfast.lifecycle import FINAL, Status
from holdfast.models import JobId

if TYPE_CHECKING:
    from collections.abc import Iterable

logger = logging.getLogger("holdfast")

_SLOWER = 1.5
"""By how much the pause between two looks grows while nothing ends."""


class CompletionWatcher:
    """`await watcher.wait_for(job_id)` returns the status that the job ended with.

    The end of a job sends no notification, because every job would pay for it. The watcher asks for
    all its jobs in one statement, after `debounce` first and then less and less often, up to every
    `refresh_interval`. A held job ends the wait with `failed`, because it is unknown when a person
    will look at it; held=False waits for what becomes of it.

    Leaving the block waits for the rest; an exception in the block cancels them instead.
    """

    def __init__(
        self,
        driver: Any = None,
        *,
        queries: Queries | None = None,
        refresh_interval: timedelta | None = timedelta(seconds=1),
        debounce: timedelta = timedelta(milliseconds=50),
        held: bool = True,
    ) -> None:
        if queries is None:
            queries = driver if isinstance(driver, Queries) else Queries(driver)
        self._queries = queries
        self._first = debounce.total_seconds()
        self._longest = max(self._first, (refresh_interval or timedelta(seconds=1)).total_seconds())
        if self._first <= 0:
            raise InvalidInput(f"debounce must be above zero, got {debounce}")
        self._ends = frozenset((*FINAL, Status.FAILED) if held else FINAL)
        self._waiting: dict[JobId, list[asyncio.Future[Status]]] = {}
        self._asked = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._looking = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        waiting = [future for some in self._waiting.values() for future in some]
        try:
            if kind is None and waiting:
                await asyncio.wait(waiting)
        finally:
            for future in waiting:
                future.cancel()
            if self._looking is not None:
                self._looking.cancel()
                await asyncio.wait([self._looking])

    def wait_for(self, job_id: JobId) -> asyncio.Future[Status]:
        """Done when the job has ended; JobNotFound when nothing is known of it."""
        if self._looking is None:
            raise InvalidInput("wait_for() works inside `async with CompletionWatcher(…)` only")
        [job_id] = check_ids([job_id])
        future: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, []).append(future)
        self._asked.set()
        return future

    async def _look(self) -> None:
        pause = self._first
        while True:
            if not self._waiting:
                await self._asked.wait()
            if self._asked.is_set():
                self._asked.clear()
                pause = self._first
            if await self._resolve():
                pause = self._first
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._asked.wait()
            pause = min(pause * _SLOWER, self._longest)

    async def _resolve(self) -> bool:
        """Ask once for all jobs. Return whether any has ended."""
        asked, before = list(self._waiting), len(self._waiting)
        try:
            for job_id, status in await self._queries.job_status(asked):
                self._settle(job_id, status)
        except JobNotFound as error:
            # The others are looked for again at once.
            self._fail([error.job_id], error)
        except (ConnectionFailed, ConnectionLost) as error:
            if lasting(error):
                self._fail(asked, error)
            logger.info("waiting jobs are looked for again: %s", error)
        except Exception as error:
            self._fail(asked, error)
        return len(self._waiting) < before

    def _settle(self, job_id: JobId, status: Status) -> None:
        futures = [future for future in self._waiting[job_id] if not future.done()]
        if status in self._ends or not futures:
            del self._waiting[job_id]
            for future in futures:
                future.set_result(status)

    def _fail(self, ids: Iterable[int], error: Exception) -> None:
        for job_id in ids:
            for future in self._waiting.pop(JobId(job_id), []):
                if not future.done():
                    future.set_exception(error)
