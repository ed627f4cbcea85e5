"""Fetches payloads that were too large for the reply to a claim, when their jobs are to run."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError, DeadlineExceeded, SchemaMissing
from holdfast.models import OWN, LargePayload
from holdfast.worker.backoff import Backoff

if TYPE_CHECKING:
    from holdfast.worker.leases import Lease
    from holdfast.worker.sources import Sources

logger = logging.getLogger("holdfast.worker")

MOST_BYTES = 4 * 1024 * 1024
"""One reply carries about this much, or one payload. After a time-out it carries half."""


class PayloadFetcher:
    """Fetches in groups, one after the other. The leases are renewed meanwhile."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._waiting: dict[Lease, asyncio.Future[bool]] = {}
        self._called = asyncio.Event()
        self._backoff = Backoff()
        self._most = MOST_BYTES
        self._quick = 0.0
        """Seconds in which a reply must arrive before twice as much is asked for."""
        self.rounds = 0

    async def fetch(self, lease: Lease) -> bool:
        """Complete the lease's job with its payload. Return False when the lease is lost."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[lease] = answer
        self._called.set()
        try:
            return await answer
        finally:
            self._waiting.pop(lease, None)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._called.wait()
            if group := self._next_group():
                await self._fetch(group)
            else:
                self._called.clear()
            self.rounds += 1

    def _next_group(self) -> list[Lease]:
        """The leases that have waited longest, with as many bytes as one reply may carry."""
        group: list[Lease] = []
        size = 0
        for lease in self._waiting:
            payload = lease.job.payload
            size += payload.size if isinstance(payload, LargePayload) else 0
            if group and size > self._most:
                break
            group.append(lease)
        return group

    async def _fetch(self, group: list[Lease]) -> None:
        sent = monotonic()
        try:
            # Only jobs of Holdfast's own table have payloads.
            found = await self._sources.leases[OWN].payloads([lease.key for lease in group])
        except (DatabaseError, SchemaMissing) as error:
            await self._pass_over(group, error, monotonic() - sent)
            return
        if self._backoff.tries:
            self._backoff.reset()
        if monotonic() - sent < self._quick:
            self._most = min(2 * self._most, MOST_BYTES)
        for lease in group:
            if (answer := self._take(lease)) is None:
                continue
            if lease.key in found:
                lease.job = lease.job._replace(payload=found[lease.key])
            answer.set_result(lease.key in found)

    async def _pass_over(
        self, group: list[Lease], error: DatabaseError | SchemaMissing, seconds: float
    ) -> None:
        """Let others go first and pause. A payload that the server cannot read fails its job."""
        damaged = isinstance(error, DatabaseError) and error.damaged
        if isinstance(error, DeadlineExceeded):
            self._most, self._quick = max(1, self._most // 2), seconds / 4
        elif damaged:
            self._most, self._quick = 1, seconds
        answers = {lease: answer for lease in group if (answer := self._take(lease)) is not None}
        if damaged and len(group) == 1:
            for answer in answers.values():
                answer.set_exception(error)
            return
        self._waiting |= answers
        await asyncio.sleep(self._backoff.pause("no payload can be fetched", error))

    def _take(self, lease: Lease) -> asyncio.Future[bool] | None:
        """None if its handler was stopped meanwhile."""
        answer = self._waiting.pop(lease, None)
        return None if answer is None or answer.done() else answer
