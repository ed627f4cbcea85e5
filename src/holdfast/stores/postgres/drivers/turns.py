"""Whose turn it is on a connection, and how long anybody waits for it."""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from holdfast.clock import monotonic
from holdfast.errors import ConnectionFailed, ConnectionLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

_NO_ANSWER = (ConnectionFailed, ConnectionLost, asyncio.CancelledError)


class Turns(Protocol):
    """Of those who share a connection."""

    def taken(self, seconds: float) -> AbstractAsyncContextManager[float]:
        """One's turn; the instant (monotonic) by which it should be over."""
        ...


def stuck(seconds: float) -> ConnectionFailed:
    return ConnectionFailed(
        f"the connection is shared and busy, and nobody on it had an answer for {seconds:.1f} s; "
        "nothing was sent"
    )


class AsyncTurns:
    """One at a time. However many wait, none gives up while the others get their answers.

    A silent server is noticed by whoever has the turn; the others must not then find it out one
    after another, each at the full price.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._answered = -math.inf

    def taken(self, seconds: float) -> _Turn:
        return _Turn(self, seconds)

    async def take(self, seconds: float) -> float:
        """Wait for one's turn; the instant by which it should be over."""
        began = monotonic()
        if self._waiting or self._lock.locked():
            await self._wait(began, seconds)
        else:
            await self._lock.acquire()
        return max(began, self._answered) + seconds

    def leave(self, error: BaseException | None) -> None:
        """One's turn is over; every end but these is an answer."""
        if not isinstance(error, _NO_ANSWER):
            self._answered = monotonic()
        self._lock.release()

    async def _wait(self, began: float, seconds: float) -> None:
        self._waiting += 1
        try:
            while True:
                left = max(began, self._answered) + seconds - monotonic()
                if left <= 0:
                    raise stuck(seconds)
                try:
                    async with asyncio.timeout(left):
                        await self._lock.acquire()
                except TimeoutError:
                    continue
                return
        finally:
            self._waiting -= 1


class _Turn:
    """What `taken` gives. After a sleep a generator would take five times as long."""

    __slots__ = ("_seconds", "_turns")

    def __init__(self, turns: AsyncTurns, seconds: float) -> None:
        self._turns = turns
        self._seconds = seconds

    async def __aenter__(self) -> float:
        return await self._turns.take(self._seconds)

    async def __aexit__(
        self, _kind: object, error: BaseException | None, _traceback: object
    ) -> None:
        self._turns.leave(error)


class ThreadTurns:
    """The same between threads; a thread may take its turn twice."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    @asynccontextmanager
    async def taken(self, seconds: float) -> AsyncIterator[float]:
        if not self._lock.acquire(timeout=seconds):
            raise stuck(seconds)
        try:
            yield monotonic() + seconds
        finally:
            self._lock.release()
