"""Stops the handlers of cancelled jobs, once the database has confirmed it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.errors import DatabaseError
from holdfast.models import CANCELED, OWN, JobId

if TYPE_CHECKING:
    from holdfast.worker.leases import Lease, LeaseSet
    from holdfast.worker.sources import Sources


class Cancellations:
    """Any role that may connect can send a notification, so each is checked against the row."""

    def __init__(self, sources: Sources, lease_set: LeaseSet) -> None:
        self._sources = sources
        self._lease_set = lease_set
        self._reported: set[Lease] = set()
        self._heard = asyncio.Event()
        self.rounds = 0

    def hear(self, job_id: JobId) -> None:
        """A notification says that this job was cancelled."""
        for lease in self._lease_set.snapshot():
            # A row of a user's table may have the same id.
            if lease.source == OWN and lease.job.id == job_id:
                self._reported.add(lease)
                self._heard.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._heard.wait()
            self._heard.clear()
            reported, self._reported = self._reported, set()
            try:
                owned = await self._sources.leases[OWN].renew([lease.key for lease in reported])
            except DatabaseError:
                # The next renewal finds it.
                continue
            for lease in reported:
                if lease.key not in owned:
                    lease.stop(CANCELED)
            self.rounds += 1
