"""Lets no more jobs of an entrypoint start than its executor can run at once."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.worker.hand import Lease


class Turns:
    """A job that waited inside its executor could not be told from one that runs: its timeout
    would pass, and a worker that stops would wait for it instead of handing it back."""

    def __init__(self, start: Callable[[Lease], None]) -> None:
        self._start = start
        self._running: Counter[str] = Counter()
        self._waiting: defaultdict[str, deque[Lease]] = defaultdict(deque)

    def begin(self, lease: Lease) -> None:
        """Start it now, or when its turn comes."""
        capacity = getattr(lease.entrypoint.executor, "capacity", 0)
        if not capacity:
            self._start(lease)
        elif self._running[lease.entrypoint.name] < capacity:
            self._running[lease.entrypoint.name] += 1
            self._start(lease)
        else:
            self._waiting[lease.entrypoint.name].append(lease)

    def ended(self, lease: Lease) -> None:
        """Its place is free for the next."""
        name = lease.entrypoint.name
        if name not in self._running:
            return
        if waiting := self._waiting[name]:
            self._start(waiting.popleft())
        else:
            self._running[name] -= 1

    def take_waiting(self) -> list[Lease]:
        """What has not started, to be handed back."""
        waiting = [lease for leases in self._waiting.values() for lease in leases]
        self._waiting.clear()
        return waiting
