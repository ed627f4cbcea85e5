"""Stops the handlers of cancelled jobs, once the database has confirmed it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.errors import DatabaseError
from holdfast.models import CANCELED, JobId

if TYPE_CHECKING:
    from holdfast.ports import Leases
    from holdfast.worker.hand import Hand, Lease


class Cancellations:
    """Whoever may connect can send a notification, so one only means: ask who owns the lease."""

    def __init__(self, leases: Leases, hand: Hand) -> None:
        self._leases = leases
        self._hand = hand
        self._said: set[Lease] = set()
        self._heard = asyncio.Event()

    def hear(self, job_id: JobId) -> None:
        """Somebody says that this job was cancelled."""
        for lease in self._hand.snapshot():
            # A row of a user's table may have the same id.
            if lease.held.queue == "" and lease.job.id == job_id:
                self._said.add(lease)
                self._heard.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._heard.wait()
            self._heard.clear()
            said, self._said = self._said, set()
            try:
                owned = await self._leases.renew([lease.held for lease in said])
            except DatabaseError:
                # The next renewal will tell.
                continue
            for lease in said:
                if lease.held not in owned:
                    lease.stop(CANCELED)
