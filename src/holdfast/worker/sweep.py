"""Takes back the jobs of dead workers, and keeps house. Runs in every worker."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from holdfast.errors import DatabaseError
from holdfast.events import Observers, Recovered, Retired
from holdfast.lifecycle import RETIRE_STALE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.models import Recovery, Want
    from holdfast.ports import Leases
    from holdfast.settings import WorkerSettings
    from holdfast.worker.hand import Hand

logger = logging.getLogger("holdfast.worker")

_BATCH = 1000
_TIDY_EVERY = 1.0
_WORTH_TIDYING = 10_000
"""Jobs; who has ended fewer does not even ask."""


class Sweeper:
    """Looks for stale leases at every interval, jittered so that a fleet does not march in step."""

    def __init__(
        self,
        leases: Leases,
        wants: Sequence[Want],
        settings: WorkerSettings,
        observers: Observers,
        worker: str,
    ) -> None:
        self._leases = leases
        self._wants = wants
        self._settings = settings
        self._observers = observers
        self._worker = worker

    async def run(self) -> None:
        """Until cancelled."""
        interval = self._settings.sweep_interval.total_seconds()
        while True:
            await _jittered(interval)
            try:
                await self.sweep()
            except DatabaseError as error:
                logger.debug("the sweep waits for the database: %s", error)

    async def sweep(self) -> None:
        """Recover until there is nothing left to recover."""
        while True:
            recovery = await self._leases.recover(self._wants, limit=_BATCH)
            self._tell(recovery)
            if len(recovery.recovered) + len(recovery.retired) < _BATCH:
                return

    def _tell(self, recovery: Recovery) -> None:
        if recovery.recovered:
            logger.warning("recovered %d jobs of dead workers", len(recovery.recovered))
            self._observers.notify(Recovered(self._worker, recovery.recovered))
        if recovery.retired:
            logger.error("held as crash loops: jobs %s", list(recovery.retired))
            self._observers.notify(
                Retired(self._worker, recovery.retired, RETIRE_STALE.reason or "")
            )


class Housekeeper:
    """Does what the store wants done now and then, however long that takes."""

    def __init__(self, leases: Leases, settings: WorkerSettings) -> None:
        self._leases = leases
        self._interval = settings.statistics_interval.total_seconds()

    async def run(self) -> None:
        """Until cancelled."""
        while self._interval:
            await _jittered(self._interval)
            try:
                await self._leases.housekeep()
            except DatabaseError as error:
                logger.debug("housekeeping waits for the database: %s", error)


class Tidier:
    """Has the store clear up after this worker, as soon as it has ended many jobs."""

    def __init__(self, leases: Leases, hand: Hand) -> None:
        self._leases = leases
        self._hand = hand

    async def run(self) -> None:
        """Until cancelled."""
        tidied = 0
        while True:
            await asyncio.sleep(_TIDY_EVERY)
            if self._hand.ended - tidied < _WORTH_TIDYING:
                continue
            tidied = self._hand.ended
            try:
                await self._leases.tidy()
            except DatabaseError as error:
                logger.debug("tidying waits for the database: %s", error)


async def _jittered(seconds: float) -> None:
    await asyncio.sleep(seconds * random.uniform(0.7, 1.0))  # noqa: S311 - not a secret
