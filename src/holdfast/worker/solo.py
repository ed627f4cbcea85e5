"""Runs a job on its last chance alone, so that only its own death can retire it.

A worker that dies takes all its jobs along, and nobody knows which of them killed it. Each gets
one recovery more. A job that would be retired by one more death runs while no other job starts
beside it: if the worker dies then, it was that job.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.models import Job
    from holdfast.task import Entrypoint
    from holdfast.worker.hand import Hand, Lease


def on_last_chance(job: Job, entrypoint: Entrypoint) -> bool:
    cap = job.max_recoveries or entrypoint.max_recoveries
    return job.recoveries > 0 and job.recoveries + 1 >= cap


class Solo:
    """One at a time. While one runs nothing is claimed, but not for longer than its lease:
    a long job that survives that long must not idle the worker."""

    def __init__(self, hand: Hand, start: Callable[[Lease], None]) -> None:
        self._hand = hand
        self._start = start
        self._waiting: deque[Lease] = deque()
        self._running: Lease | None = None

    def add(self, lease: Lease) -> None:
        self._waiting.append(lease)

    def take_waiting(self) -> list[Lease]:
        """Those that have not started, to be handed back."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    async def run(self, stopping: Callable[[], bool]) -> None:
        """Give every waiting job its turn."""
        while self._waiting and not stopping():
            if self._running is not None and self._running in self._hand:
                return
            lease = self._waiting[0]
            await self._hand.until(
                lambda: not self._hand.running or stopping(), seconds=lease.seconds
            )
            if stopping() or not self._waiting:
                return
            self._waiting.popleft()
            self._running = lease
            self._start(lease)
            await self._hand.until(
                lambda lease=lease: lease.settle_by is not None or stopping(),  # type: ignore[misc]
                seconds=lease.seconds,
            )
