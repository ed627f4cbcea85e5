"""Listens for wake-ups and cancellations, and again when the connection breaks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.errors import DatabaseError
from holdfast.worker.backoff import Backoff

if TYPE_CHECKING:
    from holdfast.ports import Wakeups
    from holdfast.worker.canceled import Cancellations
    from holdfast.worker.quarantine import Quarantine
    from holdfast.worker.work_signal import WorkSignal


class Listener:
    """Turns notifications into the work signal and into cancellations to be checked."""

    def __init__(
        self,
        wakeups: Wakeups,
        signal: WorkSignal,
        cancellations: Cancellations,
        quarantine: Quarantine,
        *,
        worker: str,
    ) -> None:
        self._wakeups = wakeups
        self._signal = signal
        self._cancellations = cancellations
        self._quarantine = quarantine
        self._worker = worker
        self._backoff = Backoff()
        self.rounds = 0
        """How many wake-ups have arrived."""

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                await self._wakeups.listen(
                    self._wake, self._cancellations.hear, self._worker, self._quarantine.look
                )
            except DatabaseError as error:
                self._signal.listening = False
                # The worker may wait for a wake-up that will not come.
                self._signal.set()
                await asyncio.sleep(self._backoff.pause("no wake-ups arrive, polling", error))

    def _wake(self) -> None:
        self.rounds += 1
        self._signal.listening = True
        if self._backoff.tries:
            self._backoff.reset()
        self._signal.set()
