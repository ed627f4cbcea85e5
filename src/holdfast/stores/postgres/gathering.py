"""Enqueues that are called at once share one statement."""

from __future__ import annotations

import asyncio
from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Literal, NamedTuple

from holdfast.clock import monotonic
from holdfast.errors import ConnectionFailed, ConnectionLost, HoldfastError, PrivilegeMissing
from holdfast.stores.postgres.inserting import MOST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.models import JobId, NewJob, OnConflict

    Send = Callable[[Sequence[NewJob], OnConflict, float], Awaitable[list[JobId | None]]]

Company = Literal["plain", "raise", "skip"]
"""Who may share a statement: jobs without a dedupe key, which never wait for another's
transaction, and those with one by what becomes of duplicates."""

_SLOW_SECONDS = 0.1
_MANY = 50
_EVERYBODYS = (ConnectionFailed, ConnectionLost, PrivilegeMissing)
"""Errors that say nothing about the jobs, so that each call alone would meet them as well."""


class _Call(NamedTuple):
    jobs: Sequence[NewJob]
    since: float
    reply: asyncio.Future[list[JobId | None]]


class Gathering:
    """While a statement is on its way, those who come wait, and go together next.

    Nobody waits for company: a call that finds the way free is sent at once, in its caller's own
    task. One that is cancelled while it waits is not sent; one that is cancelled on its way may or
    may not be enqueued. Where many wait, `beside` sends some of them at the same time. A statement
    that is slow, because it waits for somebody's dedupe key, is overtaken on another connection, if
    there may be one: `overtakers` says how many.
    """

    def __init__(self, send: Send, *, overtakers: int, beside: Send | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._send = send
        self._overtakers = overtakers
        self._beside = beside
        self._flies_beside = False
        self._on_the_way: object | None = None
        self._waiting: dict[Company, deque[_Call]] = {
            "plain": deque(),
            "raise": deque(),
            "skip": deque(),
        }
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def at_home(self) -> bool:
        """Whether its event loop is the one that runs here: to ask for that is a system call."""
        return self._thread == get_ident() and self.loop.is_running()

    async def insert(self, jobs: Sequence[NewJob], on_conflict: OnConflict) -> list[JobId | None]:
        if len(jobs) >= MOST:
            return await self._send(jobs, on_conflict, monotonic())
        if self._on_the_way is None:
            flight = self._begin()
            try:
                return await self._send(jobs, on_conflict, monotonic())
            finally:
                self._end(flight)
        call = _Call(jobs, monotonic(), self.loop.create_future())
        keyed = any([job.dedupe_key for job in jobs])
        self._waiting[on_conflict if keyed else "plain"].append(call)
        self._send_beside()
        if self._timer is None:
            self._watch()
        return await call.reply

    def _begin(self) -> object:
        flight = self._on_the_way = object()
        return flight

    def _end(self, flight: object) -> None:
        if flight is self._on_the_way:
            self._send_next()
        else:
            self._overtakers += 1

    def _overtake(self) -> None:
        self._overtakers -= 1
        self._send_next()

    def _send_next(self) -> None:
        self._on_the_way = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        company: Company = min(self._waiting, key=self._waiting_since)
        calls = _take(self._waiting[company])
        if calls and not self.loop.is_closed():
            task = self.loop.create_task(self._fly(calls, company, self._begin()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if any(self._waiting.values()):
                self._watch()

    def _send_beside(self) -> None:
        """Where many wait, some are sent on a second connection while the first one is at work."""
        waiting = self._waiting["plain"]
        if self._beside is None or self._flies_beside or len(waiting) < _MANY:
            return
        self._flies_beside = True
        task = self.loop.create_task(self._fly_beside(_take(waiting), self._beside))
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
        if self._overtakers:
            self._timer = self.loop.call_later(_SLOW_SECONDS, self._overtake)

    def _waiting_since(self, company: Company) -> float:
        waiting = self._waiting[company]
        while waiting and waiting[0].reply.done():
            waiting.popleft()
        return waiting[0].since if waiting else float("inf")

    async def _fly(self, calls: list[_Call], company: Company, flight: object) -> None:
        try:
            await self._deliver(calls, "raise" if company == "plain" else company, self._send)
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
                and (not isinstance(error, _EVERYBODYS))
            ):
                # Whose fault it is shows when they go apart.
                half = len(calls) // 2
                await self._deliver(calls[:half], on_conflict, send)
                await self._deliver(calls[half:], on_conflict, send)
                return
            for call in calls:
                if not call.reply.done():
                    call.reply.set_exception(error)
                    # Seen, also when its caller is cancelled before it can look.
                    call.reply.exception()
            return
        place = 0
        for call in calls:
            if not call.reply.done():
                call.reply.set_result(ids[place : place + len(call.jobs)])
            place += len(call.jobs)


def _take(waiting: deque[_Call]) -> list[_Call]:
    """The first, and those after it that one statement has room for."""
    calls: list[_Call] = []
    count = 0
    while waiting and (not calls or count + len(waiting[0].jobs) <= MOST):
        call = waiting.popleft()
        if not call.reply.done():
            calls.append(call)
            count += len(call.jobs)
    return calls
