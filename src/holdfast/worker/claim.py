"""Waits for a wake-up, for the next due job or for the poll; then claims what there is room for."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError
from holdfast.worker.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.models import Job, Want
    from holdfast.ports import Leases
    from holdfast.settings import WorkerSettings
    from holdfast.worker.hand import Hand

_FOREVER = 3600.0
_DEAF_POLL = 1.0


class QueueExecutionMode(StrEnum):
    """Work until told to stop, or until nothing is claimable."""

    continuous = "continuous"
    drain = "drain"


class Claimer:
    """Never claims more than there are free slots, and only what the worker can run."""

    def __init__(
        self,
        leases: Leases,
        wants: Sequence[Want],
        settings: WorkerSettings,
        hand: Hand,
        *,
        worker: str,
        start: Callable[[Sequence[Job], float], None],
        before: Callable[[], Awaitable[None]],
    ) -> None:
        self._leases = leases
        self._wants = wants
        self._settings = settings
        self._hand = hand
        self._worker = worker
        self._start = start
        self._before = before
        self._hinted = False
        self.stopping = False
        self.listening = False
        self.ticked = monotonic()
        """When a claim last got an answer: what liveness is judged by."""

    def wake(self) -> None:
        """There may be work."""
        self._hinted = True
        self._hand.changed.set()

    def stop(self) -> None:
        self.stopping = True
        self._hand.changed.set()

    async def run(self, mode: QueueExecutionMode) -> None:
        """Until stopped, or in drain mode until a look everywhere finds nothing twice."""
        backoff = Backoff()
        sweep, found_nothing = True, 0
        while not self.stopping:
            await self._before()
            free = await self._room()
            if not free:
                continue
            jobs = await self._claim(free, sweep, backoff)
            if jobs is None:
                sweep = True
                continue
            if len(jobs) == free:
                sweep = False
                continue
            found_nothing = 0 if jobs or len(self._hand) else found_nothing + 1
            if mode is QueueExecutionMode.drain and found_nothing >= 2:
                return
            if not (mode is QueueExecutionMode.drain and found_nothing):
                await self._wait(mode)
            sweep = True

    async def _claim(self, free: int, sweep: bool, backoff: Backoff) -> list[Job] | None:
        self._hinted = self._hand.freed_limit = False
        sent = monotonic()
        try:
            jobs = await self._leases.claim(
                self._wants, limit=free, worker=self._worker, sweep=sweep
            )
        except DatabaseError as error:
            await backoff.pause("no job can be claimed", error)
            return None
        backoff.reset()
        self.ticked = monotonic()
        self._start(jobs, sent)
        return jobs

    async def _room(self) -> int:
        """Free slots. Outcomes that wait for the database also take room, or they would pile up."""
        # Handlers that are about to end do so now, and their slots are claimed for together.
        await asyncio.sleep(0)
        most = self._settings.concurrency

        def roomy() -> bool:
            return self.stopping or (self._hand.running < most and len(self._hand) < 2 * most)

        while not await self._hand.until(roomy, seconds=_FOREVER):
            pass
        return 0 if self.stopping else min(self._settings.batch_size, most - self._hand.running)

    async def _wait(self, mode: QueueExecutionMode) -> None:
        """Until a hint, a stop, the next due job or the poll."""
        pause = self._settings.dequeue_timeout.total_seconds()
        if not self.listening:
            pause = min(pause, _DEAF_POLL)
        due = await self._leases.next_due(self._wants)
        if due is not None:
            pause = min(pause, due.total_seconds())

        def stirred() -> bool:
            drained = mode is QueueExecutionMode.drain and not len(self._hand)
            return self._hinted or self.stopping or self._hand.freed_limit or drained

        await self._hand.until(stirred, seconds=pause)
