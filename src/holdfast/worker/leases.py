"""The leases of a worker, and until when it may trust each of them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.models import LEASE_LOST, OWN, UNTRUSTED, Cancellation, Job, LeaseKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from uuid import UUID

    from holdfast.task import Entrypoint, Registry
    from holdfast.worker.batch import ClaimedBatch, Permit
    from holdfast.worker.loop_watchdog import Blocked

logger = logging.getLogger("holdfast.worker")

_GONE = object()

TRUST = 0.9
"""The part of a lease that a worker relies on: the rest is for clocks that tick differently."""


@dataclass(slots=True, eq=False)
class Lease:
    """A job that this worker has claimed, with all it knows about it."""

    job: Job
    key: LeaseKey
    entrypoint: Entrypoint
    seconds: float
    trusted_until: float
    permit: Permit | None = None
    """The state of the circuit breaker that it was claimed behind."""
    source: str = OWN
    """The user's table that it is from; `OWN` for Holdfast's own."""
    cancellation: Cancellation = field(default_factory=Cancellation)
    task: asyncio.Task[None] | None = None
    """While its handler runs."""
    began: float = 0.0
    seconds_run: float = 0.0
    settle_by: float | None = None
    """Set when the handler has ended: an outcome that cannot be written is not kept for ever."""
    committed: bool = False
    """The handler's own transaction has ended the job: nothing is left to write."""
    retired: bool = False
    """It asked for a retry there that the cap did not allow."""
    verdict: bool | None = None
    """The verdict of the outcome on the dependency: True works, False may be down, None nothing."""

    @property
    def trusted(self) -> bool:
        return monotonic() < self.trusted_until

    @property
    def to_be_renewed(self) -> bool:
        return self.settle_by is None or monotonic() < self.settle_by

    def renewed(self, sent: float) -> None:
        """Trust the lease anew, counted from before the renewal was sent."""
        self.trusted_until = sent + self.seconds * TRUST

    def stop(self, reason: str) -> None:
        """Cancel the handler, if it runs."""
        if self.settle_by is None:
            self.cancellation.cancel(reason)
            if self.task is not None:
                self.task.cancel()


def leases_of(batch: ClaimedBatch, registry: Registry) -> list[Lease]:
    """Make the leases of a batch. A job that was retired on the way has none."""
    terms: dict[str, tuple[Entrypoint, float, float, Permit | None, str]] = {}
    leases = []
    for job in batch.jobs:
        if job.claim_token is None:
            continue
        name = job.entrypoint
        if name not in terms:
            terms[name] = _terms(job, batch, registry)
        leases.append(Lease(job, LeaseKey(job.id, job.claim_token), *terms[name]))
    return leases


def _terms(
    job: Job, batch: ClaimedBatch, registry: Registry
) -> tuple[Entrypoint, float, float, Permit | None, str]:
    """Return the common parts of the leases of one entrypoint in a batch."""
    entrypoint = registry.get(job.entrypoint)
    assert entrypoint is not None  # noqa: S101 - only what is registered is claimed
    assert job.lease is not None  # noqa: S101 - a claimed job has one
    seconds = job.lease.total_seconds()
    permit = batch.permits.get(job.entrypoint)
    return entrypoint, seconds, batch.sent + seconds * TRUST, permit, job.queue


def by_source(leases: Iterable[Lease]) -> dict[str, list[Lease]]:
    """Divide leases by the tables that they are from. A statement is about one table."""
    divided: dict[str, list[Lease]] = defaultdict(list)
    for lease in leases:
        divided[lease.source].append(lease)
    return divided


def _by_claim(leases: Sequence[Lease]) -> Counter[UUID]:
    """Count the jobs of each claim. Neighbours mostly share one, whose token is slow to hash."""
    counts: Counter[UUID] = Counter()
    for token, some in groupby([lease.key.token for lease in leases]):
        counts[token] += len(list(some))
    return counts


class Contact:
    """Since when this worker has reached the database. Written by both of its threads."""

    def __init__(self, longest_gap: float) -> None:
        """`longest_gap`: seconds without an answer that are not yet an outage."""
        self._longest_gap = longest_gap
        self._last = self._began = monotonic()
        self._since: float | None = None

    def made(self) -> None:
        """Records that the database answered just now."""
        now = monotonic()
        if now - self._last > self._longest_gap:
            self._since = now
        self._last = now

    @property
    def age(self) -> float:
        """Seconds since this worker began."""
        return monotonic() - self._began

    @property
    def seconds(self) -> float | None:
        """Seconds since the last outage ended, 0 while one lasts. None means that there was
        none."""
        now = monotonic()
        if now - self._last > self._longest_gap:
            return 0.0
        return None if self._since is None else now - self._since


class LeaseSet:
    """All leases of a worker. Changed by its event loop, read by the renewing thread."""

    def __init__(self, longest_gap: float = math.inf) -> None:
        self.contact = Contact(longest_gap)
        self._leases: dict[Lease, object] = {}
        self._of_claim: Counter[UUID] = Counter()
        self.ended_claims: list[UUID] = []
        """Tokens of claims all of whose leases are over. Their bookkeeping can be deleted."""
        self.freed_limit = False
        """A job under a fleet-wide limit has ended, or a failure was reported to a breaker. Another
        job may be claimable."""
        self.unreported: list[Lease] = []
        """Leases that are over and whose verdicts their breakers do not have yet."""
        self._unwritable = False
        self._writing: Lease | None = None
        self.loop_blocked = False
        """The event loop is blocked: outcomes wait for it, not for the database."""
        self.given_up: Blocked | None = None
        """The event loop has been blocked for too long, so that leases are renewed no longer."""
        self.changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._leases) + len(self.unreported)

    def __contains__(self, lease: Lease) -> bool:
        return lease in self._leases

    def snapshot(self) -> list[Lease]:
        return list(self._leases)

    def unattended(self, attended: Collection[Lease]) -> list[Lease]:
        """Leases that are neither among these, which wait or are settled, nor have a handler."""
        return [
            lease
            for lease in self._leases
            if lease not in attended and (lease.task is None or lease.task.done())
        ]

    def add(self, leases: Sequence[Lease]) -> None:
        self._leases.update(dict.fromkeys(leases))
        self._of_claim.update(_by_claim(leases))

    @property
    def blocked(self) -> bool:
        """Outcomes cannot be written, so jobs that ran now would only be run again."""
        overdue = self._writing is not None and not self._writing.to_be_renewed
        return self._unwritable or overdue

    def writing(self, lease: Lease) -> None:
        """Record that its outcome, the oldest one, is on its way."""
        self._writing = lease

    def written(self, *, failed: bool) -> None:
        self._writing, self._unwritable = None, failed
        self.changed.set()

    def excuse(self, seconds: float) -> None:
        """Record that the event loop was blocked for `seconds`, so that no outcome could be
        written."""
        self.loop_blocked = False
        for lease in self._leases:
            if lease.settle_by is not None:
                lease.settle_by += seconds

    def lose(self, lease: Lease) -> None:
        """Cancel the handler of a lease that a renewal did not find."""
        if lease in self._leases and lease.settle_by is None:
            logger.info("job %s: lease lost; its handler is cancelled", lease.job.id)
            lease.stop(LEASE_LOST)

    def distrust(self, lease: Lease) -> None:
        """Cancel the handler of a lease that was not renewed in time."""
        if lease in self._leases and lease.settle_by is None and not lease.trusted:
            lease.stop(UNTRUSTED)

    def drop(self, leases: Iterable[Lease], *, lapse: bool = False) -> None:
        """End these leases. The bookkeeping of a claim is deleted when all its leases are over.

        With `lapse` it is kept, because the sweep finds the job by it.
        """
        over = [lease for lease in leases if self._leases.pop(lease, _GONE) is not _GONE]
        for lease in over:
            if lease.entrypoint.concurrency_limit:
                self.freed_limit = True
            if lease.permit is not None:
                self.unreported.append(lease)
        if not lapse:
            self._count_down(_by_claim(over))
        self.changed.set()

    def _count_down(self, over: Counter[UUID]) -> None:
        for token, count in over.items():
            self._of_claim[token] -= count
            if not self._of_claim[token]:
                del self._of_claim[token]
                self.ended_claims.append(token)

    def reported(self, leases: Sequence[Lease]) -> None:
        """Drop leases whose verdicts were reported to their breakers, or never will be."""
        done = {lease.key for lease in leases}
        self.unreported = [lease for lease in self.unreported if lease.key not in done]
        self.freed_limit = self.freed_limit or any(lease.verdict is False for lease in leases)
        self.changed.set()

    async def until(self, true: Callable[[], bool], *, seconds: float) -> bool:
        """Wait for a change after which `true()` holds. Return False when time is up."""
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
