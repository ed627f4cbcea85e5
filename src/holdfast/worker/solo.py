"""Runs a job on its last chance alone, so that only its own death can retire it.

A worker that dies takes all its jobs along, and nobody knows which of them killed it: each is
charged with a recovery. A suspect is a job that one more would retire. It is started only when
it is the only job in the worker's hand; if the worker dies then, it was that job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.models import Job
    from holdfast.task import Entrypoint
    from holdfast.worker.hand import Hand, Lease


def on_last_chance(job: Job, entrypoint: Entrypoint) -> bool:
    cap = job.max_recoveries or entrypoint.max_recoveries
    return job.recoveries > 0 and job.recoveries + 1 >= cap


class Solo:
    """Holds claims back while a suspect runs, and suspects back while others run.

    Neither for longer than a lease: jobs that live that long must not idle the worker.
    """

    def __init__(
        self,
        hand: Hand,
        start: Callable[[Sequence[Lease]], None],
        hand_back: Callable[[Lease], None],
    ) -> None:
        self._hand = hand
        self._start = start
        self._hand_back = hand_back
        self._waiting: list[Lease] = []
        self._left = 0
        self._crowded = False
        """A suspect came while others ran: the next one is claimed when they have ended."""
        self._patience = 0.0
        self._patience_lost = False

    @property
    def careful(self) -> bool:
        """Suspects were handed back: jobs are claimed one at a time, and looked for everywhere."""
        return self._left > 0

    def admit(self, leases: Sequence[Lease]) -> None:
        """Start what was claimed, or have it wait for `run`."""
        self._left = max(0, self._left - len(leases)) if leases else 0
        suspects = [
            lease
            for lease in leases
            if lease.job.recoveries and on_last_chance(lease.job, lease.entrypoint)
        ]
        if not suspects:
            self._start(leases)
            return
        others = [lease for lease in leases if lease not in suspects]
        self._crowded = bool(others or self._hand.running) and not self._patience_lost
        self._patience_lost = False
        self._patience = suspects[0].seconds
        self._waiting = others if self._crowded else [*others, suspects[0]]
        for lease in suspects[0 if self._crowded else 1 :]:
            self._hand_back(lease)
            self._left += 1

    def take_waiting(self) -> list[Lease]:
        """What has not started, to be handed back."""
        waiting, self._waiting = self._waiting, []
        return waiting

    async def run(self, stopping: Callable[[], bool]) -> None:
        """Start what waits once the suspects among it are off the books, then make room."""
        if self._waiting:
            await self._hand.until(
                lambda: self._nothing_unsettled() or stopping(), seconds=self._patience
            )
        if stopping():
            return
        started = self.take_waiting()
        self._start(started)
        if self._crowded:
            idle = await self._hand.until(
                lambda: not self._hand.running or stopping(), seconds=self._patience
            )
            self._crowded, self._patience_lost = False, not idle
        elif started:
            # Settled, not only ended: another job's death must not be charged to it.
            await self._hand.until(
                lambda: started[-1] not in self._hand or stopping(), seconds=self._patience
            )

    def _nothing_unsettled(self) -> bool:
        return all(lease.settle_by is None for lease in self._hand.snapshot())
