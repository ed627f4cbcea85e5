"""The leases a worker holds, and how far it may trust each of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.models import Cancellation, Held, Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

    from holdfast.task import Entrypoint
    from holdfast.worker.gate import Permit

_GONE = object()

TRUST = 0.9
"""The part of a lease that a worker relies on: the rest is for clocks that tick differently."""


@dataclass(slots=True, eq=False)
class Lease:
    """A claimed job in this worker's hands."""

    job: Job
    held: Held
    entrypoint: Entrypoint
    seconds: float
    trusted_until: float
    permit: Permit | None = None
    """Of the circuit breaker that it was claimed behind."""
    cancellation: Cancellation = field(default_factory=Cancellation)
    task: asyncio.Task[None] | None = None
    """While its handler runs; the task may run others before and after."""
    began: float = 0.0
    seconds_run: float = 0.0
    settle_by: float | None = None
    """Set when the handler has ended: an outcome that cannot be written must not live for ever."""
    verdict: bool | None = None
    """What the breaker is to be told: success, failure, or nothing."""

    @property
    def trusted(self) -> bool:
        return monotonic() < self.trusted_until

    @property
    def to_be_renewed(self) -> bool:
        return self.settle_by is None or monotonic() < self.settle_by

    def renewed(self, sent: float) -> None:
        """The heartbeat is at least as new as the moment the renewal was sent."""
        self.trusted_until = sent + self.seconds * TRUST

    def stop(self, reason: str) -> None:
        """Tell the handler to stop, if it runs."""
        if self.settle_by is None:
            self.cancellation.cancel(reason)
            if self.task is not None:
                self.task.cancel()


def _by_claim(leases: Sequence[Lease]) -> Counter[UUID]:
    """How many of each claim; neighbours mostly are of one, whose token is slow to hash."""
    counts: Counter[UUID] = Counter()
    for token, some in groupby([lease.held.token for lease in leases]):
        counts[token] += len(list(some))
    return counts


class Hand:
    """All leases of a worker. Changed by its event loop, read by the renewing thread."""

    def __init__(self) -> None:
        self._leases: dict[Lease, object] = {}
        self._of_claim: Counter[UUID] = Counter()
        self.ended_claims: list[UUID] = []
        """Claims all of whose leases are over, to be forgotten."""
        self.running = 0
        self.ended = 0
        """How many jobs have ended here so far."""
        self.freed_limit = False
        """A job under a fleet-wide limit has ended, or a breaker has heard of a failure: there may
        be room for another."""
        self.untold: list[Lease] = []
        """Leases that are over, but their breakers do not know it yet."""
        self._unwritable = False
        self._writing: Lease | None = None
        self.standing_still = False
        """The event loop is blocked: outcomes wait for it, not for the database."""
        self.changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._leases) + len(self.untold)

    def __contains__(self, lease: Lease) -> bool:
        return lease in self._leases

    def snapshot(self) -> list[Lease]:
        return list(self._leases)

    def add(self, leases: Sequence[Lease]) -> None:
        self._leases.update(dict.fromkeys(leases))
        self._of_claim.update(_by_claim(leases))

    def started(self, count: int) -> None:
        self.running += count

    @property
    def blocked(self) -> bool:
        """Outcomes cannot be written: jobs that ran now would only be run again."""
        overdue = self._writing is not None and not self._writing.to_be_renewed
        return self._unwritable or overdue

    def writing(self, lease: Lease) -> None:
        """Its outcome, the oldest one, is on its way."""
        self._writing = lease

    def written(self, *, failed: bool) -> None:
        self._writing, self._unwritable = None, failed
        self.changed.set()

    def excuse(self, seconds: float) -> None:
        """The event loop stood still for so long: outcomes could not even be tried."""
        self.standing_still = False
        for lease in self._leases:
            if lease.settle_by is not None:
                lease.settle_by += seconds

    def finished(self) -> None:
        self.running -= 1
        self.ended += 1
        self.changed.set()

    def unstarted(self, count: int) -> None:
        """So many were to be started, and are handed back instead."""
        self.running -= count
        self.changed.set()

    def drop(self, leases: Iterable[Lease], *, lapse: bool = False) -> None:
        """The leases are over; a claim whose leases are all over is to be forgotten.

        One with a lease that lapses is not: the sweep finds the job by it.
        """
        over = [lease for lease in leases if self._leases.pop(lease, _GONE) is not _GONE]
        for lease in over:
            if lease.entrypoint.concurrency_limit:
                self.freed_limit = True
            if lease.permit is not None:
                self.untold.append(lease)
        if not lapse:
            self._count_down(_by_claim(over))
        self.changed.set()

    def _count_down(self, over: Counter[UUID]) -> None:
        for token, count in over.items():
            self._of_claim[token] -= count
            if not self._of_claim[token]:
                del self._of_claim[token]
                self.ended_claims.append(token)

    def told(self, leases: Sequence[Lease]) -> None:
        """Their breakers have heard, or never will."""
        done = {lease.held for lease in leases}
        self.untold = [lease for lease in self.untold if lease.held not in done]
        self.freed_limit = self.freed_limit or any(lease.verdict is False for lease in leases)
        self.changed.set()

    async def until(self, true: Callable[[], bool], *, seconds: float) -> bool:
        """Wait until something has changed so that `true()`; False when time is up."""
        deadline = monotonic() + seconds
        while True:
            self.changed.clear()
            if true():
                return True
            if (left := deadline - monotonic()) <= 0:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.changed.wait()
