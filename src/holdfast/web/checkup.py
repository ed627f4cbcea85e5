"""What the doctor found last. It looks once a minute at most, and only while a page shows it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from holdfast.clock import monotonic
from holdfast.errors import ConnectionFailed, ConnectionLost, DatabaseError, HoldfastError
from holdfast.monitor.doctor import Finding, examine
from holdfast.monitor.doctor.finding import warning
from holdfast.monitor.reader import PageReader
from holdfast.redact import redact

EVERY_SECONDS = 60.0
STATEMENTS = 20
"""That one look sends at most, for the budget of the live stream."""


class Checkup:
    """The findings that all pages of a process share."""

    def __init__(self, reader: PageReader) -> None:
        self._reader = reader
        self._next_at = 0.0
        self._looking = asyncio.Lock()
        self.findings: tuple[Finding, ...] = ()
        self._task: asyncio.Task[None] | None = None

    async def seen(self) -> None:
        """Have findings. Only the first page waits for them, because a look takes long."""
        if not self._next_at:
            await self.refresh()
        elif monotonic() >= self._next_at and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._look_again())

    async def _look_again(self) -> None:
        # Without contact the page itself says so.
        with suppress(HoldfastError):
            await self.refresh()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def refresh(self) -> None:
        """Look again if the last look is old, in a read-only transaction of its own."""
        async with self._looking:
            if monotonic() < self._next_at:
                return
            try:
                async with self._reader.open() as look:
                    found = await examine(look.store, thorough=False)
                self.findings = tuple(_without_queries(each) for each in found)
            except (ConnectionFailed, ConnectionLost):
                raise
            except DatabaseError as error:
                # Such as a statement that took too long. The page shows the rest.
                self.findings = (
                    warning("doctor", f"the doctor could not look: {error}", "holdfast doctor"),
                )
            self._next_at = monotonic() + EVERY_SECONDS


def _without_queries(finding: Finding) -> Finding:
    """Another session's query can hold what a viewer of this page must not see."""
    words = finding.finding
    if finding.check == "old_transaction":
        words, *_ = words.partition(": ")
    return replace(finding, finding=redact(words))
