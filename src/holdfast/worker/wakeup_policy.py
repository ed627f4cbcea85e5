"""The wake-up policy: whether producers must send NOTIFY for this worker.

NOTIFY takes a lock of the whole database at commit. So a worker that finds job after job declares
that it needs none, and polls after a short pause instead. The pause grows with the duration of a
claim, because a slow claim means that the server is busy. When no more jobs come, the worker
declares that it needs notifications again. It then polls a few more times, at growing intervals: an
enqueue that began before the declaration sent no notification, and is found when it commits, after
at most four times as long as it took.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.ports import Wakeups

_MEMORY_SECONDS = 0.1
"""The weight of a found job falls to a third in this time."""

_BUSY_SCORE = 20.0
"""A worker with a higher score is busy. It is reached at about 200 jobs a second."""

_MOST_SCORE = 2 * _BUSY_SCORE
_SHORTEST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.02
_PAUSE_FACTOR = 3.0
"""A busy worker pauses this many times as long as its last claim took."""

_NEED_TIMEOUT_SECONDS = 0.5
_FIRST_RESCAN_SECONDS = 0.01
_RESCAN_FACTOR = 4.0
_PASS_ON_SECONDS = 0.5
"""A worker that stands aside passes on one wake-up in this time. A wake-up for all would come back
to it."""


class WakeupPolicy:
    """Tracks whether this worker currently needs NOTIFY."""

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self._score = 0.0
        self._scored = monotonic()
        self._busy_pause = _SHORTEST_PAUSE_SECONDS
        self._quiet = False
        self._next_rescan = math.inf
        self._passed_on = -math.inf
        self._sending: asyncio.Task[None] | None = None

    def found(self, count: int, seconds: float) -> None:
        """Record that a claim returned `count` jobs after `seconds`."""
        pause = max(_SHORTEST_PAUSE_SECONDS, _PAUSE_FACTOR * seconds)
        self._busy_pause = min(pause, _LONGEST_PAUSE_SECONDS)
        self._count(count)
        if self._score > _BUSY_SCORE and not self._quiet:
            self._quiet = True
            self._send(needed=False)

    def full(self, entrypoints: Sequence[str], *, more: bool) -> None:
        """Declare that this worker has no room. With `more` jobs waiting, wake another one."""
        if not self._quiet:
            self._quiet = True
            self._send(needed=False, pass_on=entrypoints if more else ())

    def aside(self, entrypoints: Sequence[str], *, woken: bool) -> None:
        """Declare that this worker claims nothing. If it was woken, wake another one instead."""
        now = monotonic()
        woken = woken and now >= self._passed_on + _PASS_ON_SECONDS
        if woken or not self._quiet:
            self._quiet = True
            self._passed_on = now if woken else self._passed_on
            self._send(needed=False, pass_on=entrypoints if woken else ())

    async def pause(self) -> float:
        """Return the seconds until the next claim, if no notification comes before."""
        self._count(0)
        if self._quiet and self._score > _BUSY_SCORE:
            return self._busy_pause
        if self._quiet:
            self._quiet, self._next_rescan = False, _FIRST_RESCAN_SECONDS
            await asyncio.wait([self._send(needed=True)], timeout=_NEED_TIMEOUT_SECONDS)
            return 0.0
        pause, self._next_rescan = self._next_rescan, self._next_rescan * _RESCAN_FACTOR
        return pause

    def end(self) -> None:
        if self._sending is not None:
            self._sending.cancel()

    def _count(self, count: int) -> None:
        now = monotonic()
        left = self._score * math.exp((self._scored - now) / _MEMORY_SECONDS)
        self._score, self._scored = min(left + count, _MOST_SCORE), now

    def _send(self, *, needed: bool, pass_on: Sequence[str] = ()) -> asyncio.Task[None]:
        before = self._sending

        async def send() -> None:
            if before is not None:
                await asyncio.wait([before])
            # A listener that reconnects needs notifications by default.
            with suppress(DatabaseError):
                await self._wakeups.need(needed=needed)
                if pass_on:
                    await self._wakeups.pass_on(pass_on)

        self._sending = asyncio.get_running_loop().create_task(send())
        return self._sending
