"""Batches concurrent enqueues into one INSERT."""

from __future__ import annotations

import asyncio
from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Literal, NamedTuple

from holdfast.clock import monotonic
from holdfast.errors import ConnectionFailed, ConnectionLost, HoldfastError, PrivilegeMissing
from holdfast.stores.postgres.idempotent_enqueue import MOST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.models import JobId, NewJob, OnConflict

    Send = Callable[[Sequence[NewJob], OnConflict, float], Awaitable[list[JobId | None]]]

BatchKind = Literal["plain", "raise", "skip"]
"""Calls of one kind may share a statement. Jobs without a dedupe key never wait for another
transaction; jobs with one are divided by what happens to duplicates."""

_SLOW_SECONDS = 0.1
_MANY_WAITING = 50
_SAME_FOR_ALL = (ConnectionFailed, ConnectionLost, PrivilegeMissing)
"""Errors that do not depend on the jobs. To split the batch would only repeat them."""


class _Call(NamedTuple):
    jobs: Sequence[NewJob]
    since: float
    reply: asyncio.Future[list[JobId | None]]


class EnqueueBatcher:
    """Sends the calls that arrive during one statement together in the next.

    A call is never delayed to fill a batch: when no statement is in flight it is sent at once, in
    its caller's task. A call that is cancelled while it waits is not sent; one that is cancelled in
    flight may or may not be enqueued. With many calls waiting, `beside` sends some of them at the
    same time. A slow statement, one that waits for the transaction that holds its dedupe key, is
    overtaken on another connection; `overtakers` limits how often. Without overtakers, `beside`
    sends jobs without a key past it.
    """

    def __init__(self, send: Send, *, overtakers: int, beside: Send | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._send = send
        self._overtakers = overtakers
        self._beside = beside
        self._flies_beside = False
        self._on_the_way: object | None = None
        self._keyed = False
        """The statement in flight has dedupe keys, so it may wait for another transaction."""
        self._slow = False
        """The statement in flight takes longer than _SLOW_SECONDS."""
        self._waiting: dict[BatchKind, deque[_Call]] = {
            "plain": deque(),
            "raise": deque(),
            "skip": deque(),
        }
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def at_home(self) -> bool:
        """Whether this thread runs its event loop. asyncio.get_running_loop() is a system call."""
        return self._thread == get_ident() and self.loop.is_running()

    async def insert(self, jobs: Sequence[NewJob], on_conflict: OnConflict) -> list[JobId | None]:
        keyed = any([job.dedupe_key for job in jobs])
        if len(jobs) >= MOST:
            passes = self._beside if self._slow and not keyed else None
            return await (passes or self._send)(jobs, on_conflict, monotonic())
        if self._on_the_way is None:
            flight = self._begin(keyed=keyed)
            try:
                return await self._send(jobs, on_conflict, monotonic())
            finally:
                self._end(flight)
        call = _Call(jobs, monotonic(), self.loop.create_future())
        self._waiting[on_conflict if keyed else "plain"].append(call)
        self._send_beside()
        if self._timer is None:
            self._watch()
        return await call.reply

    def _begin(self, *, keyed: bool) -> object:
        self._keyed, self._slow = keyed, False
        flight = self._on_the_way = object()
        return flight

    def _end(self, flight: object) -> None:
        if flight is not self._on_the_way:
            self._overtakers += 1
        elif self._timer is None and not any(self._waiting.values()):
            self._on_the_way, self._slow = None, False
        else:
            self._send_next()

    def _overtake(self) -> None:
        self._timer = None
        if self._overtakers:
            self._overtakers -= 1
            self._send_next()
        elif self._keyed:
            self._slow = True
            self._send_beside()

    def _send_next(self) -> None:
        self._on_the_way, self._slow = None, False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        kind: BatchKind = min(self._waiting, key=self._waiting_since)
        calls = _take(self._waiting[kind])
        if calls and not self.loop.is_closed():
            flight = self._begin(keyed=kind != "plain")
            task = self.loop.create_task(self._fly(calls, kind, flight))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if any(self._waiting.values()):
                self._watch()

    def _send_beside(self) -> None:
        """Send some of many waiting calls on a second connection.

        Also send every job without a key there while the first connection waits for a key.
        """
        waiting = self._waiting["plain"]
        if self._beside is None or self._flies_beside:
            return
        if len(waiting) < _MANY_WAITING and not self._slow:
            return
        calls = _take(waiting)
        if not calls:
            return
        self._flies_beside = True
        task = self.loop.create_task(self._fly_beside(calls, self._beside))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fly_beside(self, calls: list[_Call], send: Send) -> None:
        try:
            await self._deliver(calls, "raise", send)
        except asyncio.CancelledError:
            for call in calls:
                call.reply.cancel()
            raise
        finally:
            self._flies_beside = False
            if not self.loop.is_closed():
                self._send_beside()

    def _watch(self) -> None:
        if self._overtakers or (self._keyed and self._beside is not None):
            self._timer = self.loop.call_later(_SLOW_SECONDS, self._overtake)

    def _waiting_since(self, kind: BatchKind) -> float:
        waiting = self._waiting[kind]
        while waiting and waiting[0].reply.done():
            waiting.popleft()
        return waiting[0].since if waiting else float("inf")

    async def _fly(self, calls: list[_Call], kind: BatchKind, flight: object) -> None:
        try:
            await self._deliver(calls, "raise" if kind == "plain" else kind, self._send)
        except asyncio.CancelledError:
            for call in calls:
                call.reply.cancel()
            raise
        finally:
            self._end(flight)

    async def _deliver(self, calls: list[_Call], on_conflict: OnConflict, send: Send) -> None:
        jobs = [job for call in calls for job in call.jobs]
        try:
            ids = await send(jobs, on_conflict, calls[0].since)
        except Exception as error:
            if (
                len(calls) > 1
                and isinstance(error, HoldfastError)
                and (not isinstance(error, _SAME_FOR_ALL))
            ):
                # Halve the batch until only the calls that are at fault fail.
                half = len(calls) // 2
                await self._deliver(calls[:half], on_conflict, send)
                await self._deliver(calls[half:], on_conflict, send)
                return
            for call in calls:
                if not call.reply.done():
                    call.reply.set_exception(error)
                    # Mark it as retrieved: its caller may be cancelled before it reads it.
                    call.reply.exception()
            return
        place = 0
        for call in calls:
            if not call.reply.done():
                call.reply.set_result(ids[place : place + len(call.jobs)])
            place += len(call.jobs)


def _take(waiting: deque[_Call]) -> list[_Call]:
    """Take the first call, and those after it that fit into one statement."""
    calls: list[_Call] = []
    count = 0
    while waiting and (not calls or count + len(waiting[0].jobs) <= MOST):
        call = waiting.popleft()
        if not call.reply.done():
            calls.append(call)
            count += len(call.jobs)
    return calls
