"""Whether producers need to wake this worker: not while it looks for work by itself all the time.

NOTIFY takes a lock of the whole database at commit. So a worker that finds job after job says that
it needs none, and looks again after a moment instead: a longer one where a look takes long, because
then others need the processors. When no more come, it says that it needs them again, and then looks
a few times more, later and later: an enqueue that began before that, and so did not notify, is
found when it commits, after at most four times as long as it took.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError

if TYPE_CHECKING:
    from holdfast.ports import Wakeups

_MEMORY = 0.1
"""Seconds after which a job that was found counts for a third."""

_BUSY = 20.0
"""Jobs remembered that make a worker busy: 200 a second."""

_MOST = 2 * _BUSY
_MOMENT = 0.002
_LONGEST_MOMENT = 0.02
_SPARED = 3.0
"""For so many times as long as its last look took a busy worker leaves the database alone."""

_PATIENCE = 0.5
_FIRST_LOOK = 0.01
_LOOK_FACTOR = 4.0


class Rest:
    """Of one worker."""

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self._score = 0.0
        self._scored = monotonic()
        self._moment = _MOMENT
        self._quiet = False
        self._next_look = math.inf
        self._telling: asyncio.Task[None] | None = None

    def found(self, count: int, seconds: float) -> None:
        """A claim found so many jobs, and took so long."""
        self._moment = min(max(_MOMENT, _SPARED * seconds), _LONGEST_MOMENT)
        self._count(count)
        if self._score > _BUSY and not self._quiet:
            self._quiet = True
            self._tell(needed=False)

    async def pause(self) -> float:
        """Seconds after which to look again, whatever is heard until then."""
        self._count(0)
        if self._quiet and self._score > _BUSY:
            return self._moment
        if self._quiet:
            self._quiet, self._next_look = False, _FIRST_LOOK
            await asyncio.wait([self._tell(needed=True)], timeout=_PATIENCE)
            return 0.0
        pause, self._next_look = self._next_look, self._next_look * _LOOK_FACTOR
        return pause

    def end(self) -> None:
        if self._telling is not None:
            self._telling.cancel()

    def _count(self, count: int) -> None:
        now = monotonic()
        left = self._score * math.exp((self._scored - now) / _MEMORY)
        self._score, self._scored = min(left + count, _MOST), now

    def _tell(self, *, needed: bool) -> asyncio.Task[None]:
        before = self._telling

        async def tell() -> None:
            if before is not None:
                await asyncio.wait([before])
            # Who listens again after a lost connection needs to be woken by default.
            with suppress(DatabaseError):
                await self._wakeups.need(needed=needed)

        self._telling = asyncio.get_running_loop().create_task(tell())
        return self._telling
