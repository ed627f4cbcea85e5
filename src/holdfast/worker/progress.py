"""Writes the progress of jobs: the last report of each, a few times a second for all together."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from holdfast.errors import DatabaseError
from holdfast.models import OWN, Progress, ProgressNote
from holdfast.retry import sanitise

if TYPE_CHECKING:
    from holdfast.worker.leases import Lease
    from holdfast.worker.sources import Sources

logger = logging.getLogger("holdfast.worker")

_PAUSE_SECONDS = 0.25
"""Between two writes, whatever the number of jobs that say something."""

_MESSAGE_LIMIT = 500


class ProgressWriter:
    """Progress is written with the token of its lease, so a lost lease changes nothing."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._latest: dict[Lease, Progress] = {}
        self._noted = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.rounds = 0

    def note(self, lease: Lease, fraction: float, message: str | None) -> None:
        """Remember a handler's report. It may run in a thread. A user's table has no place for
        it."""
        if lease.source != OWN:
            return
        text = None if message is None else sanitise(message, _MESSAGE_LIMIT)
        self._latest[lease] = Progress(fraction, text)
        if threading.get_ident() == self._thread:
            self._noted.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._noted.set)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._noted.wait()
            self._noted.clear()
            await self._write()
            self.rounds += 1
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _write(self) -> None:
        latest, self._latest = self._latest, {}
        try:
            notes = [ProgressNote(lease.key, progress) for lease, progress in latest.items()]
            await self._sources.leases[OWN].note_progress(notes)
        except DatabaseError as error:
            logger.debug("progress of %d jobs waits for the database: %s", len(latest), error)
            self._latest = latest | self._latest
            self._noted.set()
