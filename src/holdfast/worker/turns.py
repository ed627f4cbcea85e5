"""Lets no more jobs of an entrypoint start than its executor can run at once."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.worker.hand import Lease


class Turns:
    """A job that waited inside its executor could not be told from one that runs: its timeout
    would pass, and a worker that stops would wait for it instead of handing it back."""

    def __init__(self, start: Callable[[Sequence[Lease]], None]) -> None:
        self._start = start
        self._running: Counter[str] = Counter()
        self._waiting: defaultdict[str, deque[Lease]] = defaultdict(deque)

    def begin(self, leases: Sequence[Lease]) -> None:
        """Start them now, or when their turn comes."""
        entrypoints = {lease.entrypoint.name: lease.entrypoint for lease in leases}
        capacities = {
            name: capacity
            for name, entrypoint in entrypoints.items()
            if (capacity := getattr(entrypoint.executor, "capacity", 0))
        }
        if capacities:
            leases = [lease for lease in leases if self._may_start(lease, capacities)]
        self._start(leases)

    def _may_start(self, lease: Lease, capacities: Mapping[str, int]) -> bool:
        name = lease.entrypoint.name
        if name not in capacities:
            return True
        if self._running[name] < capacities[name]:
            self._running[name] += 1
            return True
        self._waiting[name].append(lease)
        return False

    def ended(self, lease: Lease) -> None:
        """Its place is free for the next."""
        name = lease.entrypoint.name
        if name not in self._running:
            return
        if waiting := self._waiting[name]:
            self._start([waiting.popleft()])
        else:
            self._running[name] -= 1

    def take_waiting(self) -> list[Lease]:
        """What has not started, to be handed back."""
        waiting = [lease for leases in self._waiting.values() for lease in leases]
        self._waiting.clear()
        return waiting
