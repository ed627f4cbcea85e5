"""Slots of the entrypoints whose executors run only some jobs at a time.

A job that waited inside its executor could not be told from one that runs: its timeout would pass,
and a worker that stops would wait for it instead of releasing it. So such an entrypoint has slots
of its own beside the worker's, and a claim takes no more of its jobs than these have room for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.worker.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.models import Capacity, ClaimRule, Job
    from holdfast.settings import WorkerSettings
    from holdfast.worker.leases import Lease


@dataclass(slots=True)
class _Bounded:
    """The slots of one entrypoint."""

    slots: Slots
    capacity: Capacity
    """The capacity that the last claim left."""
    freed: int = 0
    """How many slots became free since that claim was answered."""


class EntrypointSlots:
    """The slots of every entrypoint that has a bound. The others pass."""

    def __init__(self, rules: Sequence[ClaimRule], settings: WorkerSettings) -> None:
        self._bounded = {
            rule.entrypoint: _Bounded(
                Slots(replace(settings, concurrency=rule.capacity.left)), rule.capacity
            )
            for rule in rules
            if rule.capacity is not None
        }
        self._all_bounded = len(self._bounded) == len(rules)

    def __len__(self) -> int:
        """Return how many leases wait for a slot of their entrypoint."""
        return sum(len(each.slots) for each in self._bounded.values())

    def __getitem__(self, entrypoint: str) -> Slots:
        return self._bounded[entrypoint].slots

    @property
    def full(self) -> bool:
        """Whether no entrypoint has room for another job."""
        return self._all_bounded and not any(each.slots.room > 0 for each in self._bounded.values())

    @property
    def names_full(self) -> list[str]:
        """The entrypoints whose slots are all in use, for the report of the worker."""
        return sorted(name for name, each in self._bounded.items() if each.slots.full)

    @property
    def reopened(self) -> bool:
        """Whether an entrypoint has room again whose capacity the last claim used up."""
        return any(each.capacity.left <= 0 < each.slots.room for each in self._bounded.values())

    def offer(self, coming: Iterable[Job]) -> None:
        """Set the capacity of each rule for the next claim, less what has yet to begin."""
        count = Counter(job.entrypoint for job in coming)
        for name, each in self._bounded.items():
            each.capacity.left = max(0, each.slots.room - count[name])

    def expect(self, share: float, *, steady: bool) -> None:
        """Claim ahead after a claim that took this share of the time since the one before. An
        entrypoint whose capacity it used up may have more jobs queued."""
        for each in self._bounded.values():
            if steady and each.capacity.left <= 0:
                each.slots.expect(each.freed * share)
            else:
                each.slots.expect_none()
            each.freed = 0

    def add(self, leases: Sequence[Lease], until: float) -> list[Lease]:
        """Return the leases that have a slot of their entrypoint, or need none."""
        admitted: list[Lease] = []
        bounded: dict[str, list[Lease]] = {}
        for lease in leases:
            name = lease.entrypoint.name
            (bounded.setdefault(name, []) if name in self._bounded else admitted).append(lease)
        for name, some in bounded.items():
            admitted += self._bounded[name].slots.add(some, until)
        return admitted

    def leave(self, entrypoint: str, *, ran: bool) -> list[Lease]:
        """Free a slot. Return the lease that takes it at once, if there is one."""
        each = self._bounded.get(entrypoint)
        if each is None:
            return []
        each.freed += ran
        following = each.slots.leave()
        return [] if following is None else [following]

    @property
    def late_at(self) -> float | None:
        """When the first lease that waits will have waited too long."""
        late = [each.slots.late_at for each in self._bounded.values()]
        return min((at for at in late if at is not None), default=None)

    def take_late(self, now: float) -> list[Lease]:
        """Take the leases that have waited too long."""
        return [lease for each in self._bounded.values() for lease in each.slots.take_late(now)]

    def take_waiting(self) -> list[Lease]:
        """Take all leases that wait for a slot."""
        return [lease for each in self._bounded.values() for lease in each.slots.take_waiting()]

    @property
    def waiting(self) -> list[Lease]:
        return [lease for each in self._bounded.values() for lease in each.slots.waiting]
