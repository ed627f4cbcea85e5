"""Waits for a wake-up, for the next due job or for the poll; then claims what there is room for."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError, PrivilegeMissing, SchemaMissing
from holdfast.worker.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import timedelta

    from holdfast.models import Job, Want
    from holdfast.ports import Leases
    from holdfast.settings import WorkerSettings
    from holdfast.worker.gate import Gate
    from holdfast.worker.hand import Hand
    from holdfast.worker.rest import Rest
    from holdfast.worker.slots import Slots
    from holdfast.worker.solo import Solo
    from holdfast.worker.turns import Turns

T = TypeVar("T")
_RECOVERIES = attrgetter("recoveries")
_FOREVER = 3600.0
_DEAF_POLL = 1.0
_LAST_WORD = 0.8
"""Seconds for the reply to a question that was on its way when the worker was stopped."""


class QueueExecutionMode(StrEnum):
    """Work until told to stop, or until nothing is claimable."""

    continuous = "continuous"
    drain = "drain"


class Claimer:
    """Never claims more than there will be free slots, and only what the worker can run."""

    def __init__(
        self,
        leases: Leases,
        gate: Gate,
        settings: WorkerSettings,
        hand: Hand,
        solo: Solo,
        slots: Slots,
        turns: Turns,
        *,
        rest: Rest,
        worker: str,
        start: Callable[[Sequence[Job], float], None],
    ) -> None:
        self._leases = leases
        self._gate = gate
        self._settings = settings
        self._hand = hand
        self._solo = solo
        self._slots = slots
        self._turns = turns
        self._rest = rest
        self._worker = worker
        self._start = start
        self._hinted = False
        self._alarm: asyncio.TimerHandle | None = None
        self._question: asyncio.Timeout | None = None
        self.stopping = False
        self.listening = False
        self._answered = False
        self._claimed: tuple[list[Job], float] | None = None
        """Jobs that begin as soon as the claim after theirs is on its way, and when it was sent."""
        self.ticked = monotonic()
        """When a claim last got an answer: what liveness is judged by."""

    def wake(self) -> None:
        """There may be work."""
        self._hinted = True
        self._hand.changed.set()

    def wake_in(self, delay: timedelta) -> None:
        """This worker put a job off for so long: before the next poll nobody else will tell."""
        loop = asyncio.get_running_loop()
        when = loop.time() + delay.total_seconds()
        if delay < self._settings.dequeue_timeout and (
            self._alarm is None or self._alarm.when() > when
        ):
            self._silence()
            self._alarm = loop.call_at(when, self._ring)

    def stop(self) -> None:
        self.stopping = True
        self._hand.changed.set()
        if self._question is not None and not self._question.expired():
            self._question.reschedule(asyncio.get_running_loop().time() + _LAST_WORD)

    async def run(self, mode: QueueExecutionMode) -> None:
        """Until stopped, or in drain mode until a look everywhere finds nothing twice."""
        backoff = Backoff()
        drain = mode is QueueExecutionMode.drain
        sweep, found_nothing = False, 0
        try:
            # A stop that was asked for before is heard first.
            await asyncio.sleep(0)
            while not self.stopping:
                free = await self._room()
                jobs = await self._claim(free, sweep or self._solo.careful, backoff)
                await self._solo.run(lambda: self.stopping)
                if jobs is None or len(jobs) == free or self._solo.careful or self._turns.reopened:
                    continue
                sweep = drain
                found_nothing = 0 if jobs or len(self._hand) else found_nothing + 1
                if drain and found_nothing >= 2:
                    return
                if not (drain and found_nothing):
                    await self._wait(drain)
        finally:
            self._start_claimed()
            self._silence()
            self._rest.end()

    async def _claim(self, free: int, sweep: bool, backoff: Backoff) -> list[Job] | None:
        if not free:
            return None
        self._hinted = self._hand.freed_limit = False
        self._turns.offer(self._claimed[0] if self._claimed else ())
        sent, ended = monotonic(), self._hand.ended
        try:
            jobs = await self._ask(self._gate.claim(free, partial(self._take, sweep)))
        except TimeoutError:
            # Stopped, and the database is silent: a lease that it may have given lapses.
            return None
        except (DatabaseError, SchemaMissing) as error:
            # A worker that was never allowed to work will not be by waiting.
            if isinstance(error, PrivilegeMissing) and not self._answered:
                raise
            pause = backoff.pause("no job can be claimed", error)
            await self._hand.until(lambda: self.stopping, seconds=pause)
            return None
        backoff.reset()
        self._answered = True
        self.ticked = monotonic()
        self._start_claimed()
        self._claimed = jobs, sent
        self._expect(self._hand.ended - ended, came_short=len(jobs) < free)
        if self._another_follows(jobs, free):
            asyncio.get_running_loop().call_soon(self._start_claimed)
        else:
            self._start_claimed()
            # They begin before anything else is asked of the database.
            await asyncio.sleep(0)
        self._rest.found(len(jobs), self.ticked - sent)
        return None if self._gate.probed else jobs

    def _expect(self, ended: int, *, came_short: bool) -> None:
        """How many to claim ahead, by how many jobs ended during this claim."""
        steady = not self._solo.careful and not self._gate.guards
        if came_short or not steady:
            self._slots.expect_none()
        else:
            self._slots.expect(ended)
        self._turns.expect(steady=steady)

    def _another_follows(self, jobs: Sequence[Job], free: int) -> bool:
        """Whether the next claim is made whatever becomes of these: it need not wait for them."""
        if len(jobs) < free or self.stopping or self._solo.careful or self._gate.guards:
            return False
        return not any(map(_RECOVERIES, jobs))

    def _start_claimed(self) -> None:
        if self._claimed is not None:
            (jobs, sent), self._claimed = self._claimed, None
            self._start(jobs, sent)

    async def _take(self, sweep: bool, wants: Sequence[Want], limit: int) -> list[Job]:
        return await self._leases.claim(wants, limit=limit, worker=self._worker, sweep=sweep)

    async def _room(self) -> int:
        """Free slots. Outcomes that wait for the database also take room, or they would pile up."""
        if self._free < self._settings.batch_size:
            # Handlers that are about to end do so now, and their slots are claimed for together.
            await asyncio.sleep(0)

        def roomy() -> bool:
            return self.stopping or (self._free > 0 and not self._hand.blocked)

        while not await self._hand.until(roomy, seconds=_FOREVER):
            pass
        if self.stopping:
            return 0
        batch = 1 if self._solo.careful else self._settings.batch_size
        return min(batch, self._free)

    @property
    def _free(self) -> int:
        most = self._settings.concurrency + self._slots.ahead
        coming = len(self._claimed[0]) if self._claimed else 0
        return min(most - self._hand.running, 2 * most - len(self._hand)) - coming

    async def _wait(self, drain: bool) -> None:
        """Until a hint, a stop, the next due job or the poll; without room no hint is of use."""
        pause = self._settings.dequeue_timeout.total_seconds()
        if not self.listening:
            pause = min(pause, _DEAF_POLL)
        full = self._turns.full
        if not full:
            pause = await self._sooner(pause, drain)

        def stirred() -> bool:
            if self.stopping or (drain and not len(self._hand)):
                return True
            if self._turns.full:
                return False
            return full or self._hinted or self._hand.freed_limit or self._turns.reopened

        await self._hand.until(stirred, seconds=pause)

    async def _sooner(self, pause: float, drain: bool) -> float:
        """Seconds after which a claim may find something, if that is before the pause is over."""
        due = await self._next_due()
        if due is not None:
            pause = min(pause, due.total_seconds())
        pause = min(pause, self._gate.pause)
        if pause > 0 and not drain:
            pause = min(pause, await self._rest.pause())
        return pause

    async def _next_due(self) -> timedelta | None:
        if not self._gate.wants:
            return None
        try:
            return await self._ask(self._leases.next_due(self._gate.wants))
        except (DatabaseError, TimeoutError):
            # The next claim will tell, and knows how long to wait.
            return None

    async def _ask(self, question: Awaitable[T]) -> T:
        """Put a question to the database, for whose answer a stop does not wait long."""
        async with asyncio.timeout(_LAST_WORD if self.stopping else None) as self._question:
            try:
                return await question
            finally:
                self._question = None

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _ring(self) -> None:
        self._alarm = None
        self.wake()
