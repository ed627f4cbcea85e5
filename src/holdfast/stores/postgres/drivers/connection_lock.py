"""Locks of shared connections: one statement at a time, and a bound on the wait."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from holdfast.clock import monotonic
from holdfast.errors import ConnectionFailed, ConnectionLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

_NO_ANSWER = (ConnectionFailed, ConnectionLost, asyncio.CancelledError)


class ConnectionLock(Protocol):
    """Lets one of those who share a connection use it."""

    def taken(self, seconds: float) -> AbstractAsyncContextManager[float]:
        """Hold the lock; gives the instant (monotonic) by which its use should be over."""
        ...


def busy(seconds: float) -> ConnectionFailed:
    return ConnectionFailed(
        f"the connection is shared and busy, and nobody on it had an answer for {seconds:.1f} s; "
        "nothing was sent"
    )


class AsyncConnectionLock:
    """Lets a few users in at a time, in the order in which they came.

    None gives up waiting while others get their answers. A silent server is noticed by the
    statement in flight. The others must not then find it out one after another, each at the full
    price.
    """

    def __init__(self) -> None:
        self.free = 1
        """Places that the next users take at once. While there is one, no caller waits."""
        self.waiting: deque[asyncio.Future[None]] = deque()
        self._answered = -math.inf

    def taken(self, seconds: float) -> _Taken:
        return _Taken(self, seconds)

    async def take(self, seconds: float) -> float:
        """Wait for a place; return the instant by which its use should be over."""
        began = monotonic()
        if self.free:
            self.free -= 1
        else:
            await self._wait(began, seconds)
        return max(began, self._answered) + seconds

    def leave(self, error: BaseException | None) -> None:
        """Leave the place; every end but _NO_ANSWER is an answer of the server."""
        if not isinstance(error, _NO_ANSWER):
            self._answered = monotonic()
        self.add_place()

    def add_place(self) -> None:
        """Give a place to the first that waits."""
        while self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1

    async def _wait(self, began: float, seconds: float) -> None:
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            while not turn.done():
                left = max(began, self._answered) + seconds - monotonic()
                if left <= 0:
                    raise busy(seconds)
                await asyncio.wait({turn}, timeout=left)
        except BaseException:
            if not turn.cancel():
                # The place came with the cancellation: it belongs to the next.
                self.add_place()
            raise


class _Taken:
    """The object that `taken` returns. After a sleep a generator would take five times as long."""

    __slots__ = ("_lock", "_seconds")

    def __init__(self, lock: AsyncConnectionLock, seconds: float) -> None:
        self._lock = lock
        self._seconds = seconds

    async def __aenter__(self) -> float:
        return await self._lock.take(self._seconds)

    async def __aexit__(
        self, _kind: object, error: BaseException | None, _traceback: object
    ) -> None:
        self._lock.leave(error)


class ThreadConnectionLock:
    """The same between threads; a thread may take it twice."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    @asynccontextmanager
    async def taken(self, seconds: float) -> AsyncIterator[float]:
        if not self._lock.acquire(timeout=seconds):
            raise busy(seconds)
        try:
            yield monotonic() + seconds
        finally:
            self._lock.release()
