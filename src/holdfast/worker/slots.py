"""Slots of a worker or of one entrypoint, and how many jobs to hold beyond them.

Where jobs end sooner than a claim, a slot would be empty until the next claim is answered. So a
worker claims ahead what will find a slot meanwhile, by how many jobs ended during its last claim.
Where jobs take long, that is none. A job that waits too long for a slot is released, because
another worker may have one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.settings import WorkerSettings
    from holdfast.worker.leases import Lease

_CLAIMS_AHEAD = 4
"""A worker holds the jobs that end during this many claims: one that is on its way, one that is
sent after it, and as many again. With two, small claims stay small, because each brings only what
ends until the next one. With 20 slots and jobs that take no time, a drain with two costs a tenth
more CPU."""

_DECAY = 0.9
"""The largest number of ended jobs falls to this part with each claim. Jobs that begin together end
together, so one claim during which none ended says little."""


class Slots:
    """Counts free slots and keeps the leases that wait for one, in their order."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._free = self._most = settings.concurrency
        # With slots for two batches a claim finds room while the jobs of the one before run.
        self._most_ahead = max(0, 2 * settings.batch_size - settings.concurrency)
        self._waiting: deque[tuple[Lease, float]] = deque()
        self._ended = 0.0
        self.ahead = 0
        """How many jobs to hold beyond the slots."""

    def __len__(self) -> int:
        """Return how many leases wait for a slot."""
        return len(self._waiting)

    @property
    def room(self) -> int:
        """How many more leases may be claimed for these slots; negative when there are too many."""
        return self._free + self.ahead - len(self._waiting)

    @property
    def full(self) -> bool:
        return self._free <= 0

    @property
    def waiting(self) -> list[Lease]:
        return [lease for lease, _ in self._waiting]

    def expect(self, ended: float) -> None:
        """Claim ahead for as many jobs as end during a claim."""
        self._ended = max(ended, self._ended * _DECAY)
        self.ahead = min(int(_CLAIMS_AHEAD * self._ended), self._most_ahead)

    def expect_none(self) -> None:
        """Claim nothing ahead: no more jobs are queued, or others must end first."""
        self._ended, self.ahead = 0.0, 0

    def add(self, leases: Sequence[Lease], until: float) -> Sequence[Lease]:
        """Return the leases that have a slot now. The others wait, behind those before them."""
        now = 0 if self._waiting else min(self._free, len(leases))
        self._free -= now
        if now == len(leases):
            return leases
        self._waiting.extend((lease, until) for lease in leases[now:])
        return leases[:now]

    def leave(self) -> Lease | None:
        """Free a slot. Return the lease that takes it at once, if one waits."""
        if self._waiting:
            return self._waiting.popleft()[0]
        self._free += 1
        return None

    @property
    def late_at(self) -> float | None:
        """When the first lease that waits will have waited too long."""
        return self._waiting[0][1] if self._waiting else None

    def take_late(self, now: float) -> list[Lease]:
        """Take the leases that have waited too long, and claim nothing ahead from now on."""
        late = []
        while self._waiting and self._waiting[0][1] <= now:
            late.append(self._waiting.popleft()[0])
        if late:
            self.expect_none()
        return late

    def take_waiting(self) -> list[Lease]:
        """Take all leases that wait for a slot."""
        waiting = self.waiting
        self._waiting.clear()
        return waiting

    def recount(self, busy: int) -> None:
        """Correct the number of free slots."""
        self._free = self._most - busy
