"""Waits for the ends of jobs: one LISTEN and one statement at a time, whatever the number."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.clock import monotonic
from holdfast.errors import ConnectionFailed, DatabaseError, PrivilegeMissing
from holdfast.lifecycle import FINAL, Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.models import JobId, StoredResult
    from holdfast.ports import Store

logger = logging.getLogger("holdfast")

ENDS = frozenset((*FINAL, Status.FAILED))
"""A held job ends a wait, because it is unknown when a person will look at it."""

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
"""Seconds between two reads of jobs whose end is not notified."""

_SLOWER = 1.5
_IDLE_SECONDS = 10.0
"""Seconds for which the listening connection stays open while no caller waits."""

_AGAIN_SECONDS = 1.0
"""Before a connection that broke is opened again."""

_MOST_RESULTS = 100
"""Results in one reply. Each has up to a megabyte."""

Ended = Status | None


class Waiting:
    """The waits of one event loop. It reads through `store`, and listens on a connection more."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._futures: dict[JobId, list[asyncio.Future[Ended]]] = {}
        self._announced: set[JobId] = set()
        self._wake = asyncio.Event()
        self._look_at_all = True
        self._task: asyncio.Task[None] | None = None
        self.loop = asyncio.get_running_loop()
        self.results = ResultReader(store)

    def uses(self, store: Store) -> bool:
        """Whether it reads through this store."""
        return self._store is store

    async def ended(self, job_id: JobId) -> Ended:
        """How the job ended, or that it is held; None when its id is unknown."""
        future: asyncio.Future[Ended] = self.loop.create_future()
        self._futures.setdefault(job_id, []).append(future)
        self._announced.add(job_id)
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = self.loop.create_task(self._work())
        try:
            return await future
        finally:
            waiting = self._futures.get(job_id, [])
            if future in waiting:
                waiting.remove(future)
                if not waiting:
                    del self._futures[job_id]

    async def close(self) -> None:
        """Stop waiting. Those who still wait are told that the queue was left."""
        await self.results.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for job_id, futures in self._futures.items():
            _fail(futures, _left(job_id))

    async def _work(self) -> None:
        # A wait may begin while the connection of those before it is closed.
        while True:
            await self._serve()
            if not self._futures:
                return

    async def _serve(self) -> None:
        fork = self._store.fork("results")
        # Elsewhere the connection that would listen is the one that everything else needs.
        listens = self._store.dedicated or fork is self._store
        listening = self.loop.create_task(self._listen(fork)) if listens else None
        try:
            await self._look()
        except Exception as error:
            _fail([each for some in self._futures.values() for each in some], error)
        finally:
            if listening is not None:
                listening.cancel()
                await asyncio.wait([listening])
            if self._store.dedicated:
                with suppress(DatabaseError):
                    await fork.close()

    async def _listen(self, fork: Store) -> None:
        while True:
            try:
                await fork.results.listen(self._ready, self._announce)
            except DatabaseError as error:
                logger.info("results are looked for without notifications: %s", error)
            await asyncio.sleep(_AGAIN_SECONDS)

    def _ready(self) -> None:
        """Jobs that ended before this are not announced any more."""
        self._look_at_all = True
        self._wake.set()

    def _announce(self, job_id: JobId) -> None:
        if job_id in self._futures:
            self._announced.add(job_id)
            self._wake.set()

    async def _look(self) -> None:
        """Run until no caller has waited for a while."""
        pause, idle_since = _FIRST_PAUSE_SECONDS, monotonic()
        while self._futures or monotonic() - idle_since < _IDLE_SECONDS:
            self._wake.clear()
            waiting = set(self._futures)
            asked = waiting if self._look_at_all else waiting & self._announced
            self._announced.clear()
            self._look_at_all = False
            if asked:
                found = await self._resolve(asked)
                pause = _FIRST_PAUSE_SECONDS if found else pause
            if self._futures:
                idle_since = monotonic()
            try:
                async with asyncio.timeout(pause if self._futures else _IDLE_SECONDS):
                    await self._wake.wait()
                if not self._announced.isdisjoint(self._futures):
                    pause = _FIRST_PAUSE_SECONDS
            except TimeoutError:
                self._look_at_all = True
                pause = min(pause * _SLOWER, _LONGEST_PAUSE_SECONDS)

    async def _resolve(self, asked: Iterable[JobId]) -> bool:
        """Ask once for all jobs. Return whether any has ended."""
        try:
            known = await self._store.jobs.statuses(sorted(asked))
        except DatabaseError as error:
            if lasting(error):
                raise
            logger.info("waiting jobs are looked for again: %s", error)
            return False
        ended = False
        for job_id in asked:
            status = known.get(job_id)
            if status is None or status in ENDS:
                ended = True
                for future in self._futures.pop(job_id, []):
                    if not future.done():
                        future.set_result(status)
        return ended


class ResultReader:
    """Reads stored results. What is asked for at the same time is one statement."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked: list[tuple[JobId, asyncio.Future[StoredResult | None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def get(self, job_id: JobId) -> StoredResult | None:
        """The stored result of a job. None where it has expired or was never stored."""
        future: asyncio.Future[StoredResult | None] = asyncio.get_running_loop().create_future()
        self._asked.append((job_id, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        return await future

    async def close(self) -> None:
        """Stop reading. Those who still wait are told that the queue was left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for job_id, future in self._asked:
            _fail([future], _left(job_id))

    async def _work(self) -> None:
        while self._asked:
            some, self._asked = self._asked[:_MOST_RESULTS], self._asked[_MOST_RESULTS:]
            try:
                found = await self._store.results.get(sorted({job_id for job_id, _ in some}))
            except BaseException as error:
                _fail([future for _, future in some], error)
                if not isinstance(error, Exception):
                    raise
                continue
            for job_id, future in some:
                if not future.done():
                    future.set_result(found.get(job_id))


def lasting(error: DatabaseError) -> bool:
    """Whether asking again would meet the same error."""
    closed = isinstance(error, ConnectionFailed) and error.closed
    return closed or error.undefined or isinstance(error, PrivilegeMissing)


def _left(job_id: JobId) -> ConnectionFailed:
    return ConnectionFailed(
        f"the queue was left while job {job_id} was waited for; enter it again with `async with`, "
        "and wait again",
        closed=True,
    )


def _fail(futures: Iterable[asyncio.Future[Any]], error: BaseException) -> None:
    """Hand an error to all who wait. A cancellation cancels them."""
    for future in futures:
        if not isinstance(error, Exception):
            future.cancel()
        elif not future.done():
            future.set_exception(error)
