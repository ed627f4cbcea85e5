"""Lets no more handlers run than there are slots, and says how many jobs to hold beyond them.

Where jobs are over sooner than a claim, a slot would stand empty until the next one is answered. So
a worker claims ahead what will find a slot meanwhile, going by how many jobs ended during its last
claim: where they take long, that is none. A job that still finds no slot is handed back soon, for
another worker may have one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from holdfast.clock import monotonic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.settings import WorkerSettings
    from holdfast.worker.hand import Lease

_CLAIMS = 2
"""What ends during the claim that is on its way, and during the one that is sent after it."""

_MEMORY = 0.9
"""What is left of the largest number after each claim: jobs begin together, and so they end."""

_PATIENCE = 0.25
"""Seconds that a job waits for a slot."""


class Slots:
    """Of one worker, or of one entrypoint of it."""

    def __init__(
        self,
        settings: WorkerSettings,
        start: Callable[[Sequence[Lease]], None],
        hand_back: Callable[[Sequence[Lease]], None],
    ) -> None:
        self._start = start
        self._hand_back = hand_back
        self._free = settings.concurrency
        # With slots for two batches a claim finds room while the jobs of the one before run.
        self._most_ahead = max(0, 2 * settings.batch_size - settings.concurrency)
        self._waiting: deque[tuple[Lease, float]] = deque()
        self._alarm: asyncio.TimerHandle | None = None
        self._ended = 0.0
        self.ahead = 0
        """How many jobs to hold beyond the slots."""

    def __len__(self) -> int:
        """How many jobs wait for one."""
        return len(self._waiting)

    @property
    def room(self) -> int:
        """How many more jobs there may be for them; below zero when there are too many."""
        return self._free + self.ahead - len(self._waiting)

    def expect(self, ended: int) -> None:
        """So many jobs ended during a claim, and will during the next."""
        self._ended = max(ended, self._ended * _MEMORY)
        self.ahead = min(int(_CLAIMS * self._ended), self._most_ahead)

    def expect_none(self) -> None:
        """No more are waiting, or they must not be claimed before others have ended."""
        self._ended, self.ahead = 0.0, 0

    def begin(self, leases: Sequence[Lease]) -> None:
        """Start them now, or as slots become free; who waits has come before them."""
        now = 0 if self._waiting else min(self._free, len(leases))
        self._free -= now
        if waiting := leases[now:]:
            until = monotonic() + _PATIENCE
            self._waiting.extend((lease, until) for lease in waiting)
            self._watch()
        self._start(leases[:now])

    def ended(self) -> None:
        """A slot is free for the next."""
        if self._waiting:
            self._start([self._waiting.popleft()[0]])
        else:
            self._free += 1

    def take_waiting(self) -> list[Lease]:
        """What has not started, to be handed back."""
        waiting = [lease for lease, _ in self._waiting]
        self._waiting.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        return waiting

    def _watch(self) -> None:
        if self._alarm is None and self._waiting:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(self._waiting[0][1] - monotonic(), self._lose_patience)

    def _lose_patience(self) -> None:
        self._alarm = None
        now, late = monotonic(), []
        while self._waiting and self._waiting[0][1] <= now:
            late.append(self._waiting.popleft()[0])
        if late:
            self.expect_none()
            self._hand_back(late)
        self._watch()
