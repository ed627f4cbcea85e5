"""Recovers the jobs of dead workers, and does the upkeep of the store, once for all workers."""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast.errors import DatabaseError
from holdfast.events import Observers, Recovered, Retired
from holdfast.lifecycle import RETIRE_STALE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.models import ClaimRule, Recovery
    from holdfast.ports import Claims
    from holdfast.settings import WorkerSettings
    from holdfast.worker.dispatcher import Dispatcher
    from holdfast.worker.leases import LeaseSet
    from holdfast.worker.quarantine import Quarantine
    from holdfast.worker.sources import Sources
    from holdfast.worker.upkeep import UpkeepDuty

logger = logging.getLogger("holdfast.worker")

_RECOVER_BATCH = 1000
_CLEAN_UP_SECONDS = 1.0
_CLEAN_UP_JOBS = 10_000
"""A worker that has ended fewer jobs since the last time does not ask the server."""


class Sweeper:
    """Looks for stale leases at every interval, jittered so that a fleet spreads its sweeps."""

    def __init__(
        self,
        sources: Sources,
        rules: Sequence[ClaimRule],
        settings: WorkerSettings,
        lease_set: LeaseSet,
        observers: Observers,
        worker: str,
        quarantine: Quarantine,
        duty: UpkeepDuty,
    ) -> None:
        self._sources = sources
        self._rules = rules
        self._quarantine = quarantine
        self._duty = duty
        self._settings = settings
        self._lease_set = lease_set
        self._observers = observers
        self._worker = worker
        self.rounds = 0

    async def run(self) -> None:
        """Sweep until cancelled."""
        interval = self._settings.sweep_interval.total_seconds()
        lease = self._settings.heartbeat_timeout.total_seconds()
        while True:
            await self._duty.pause(interval)
            # After an outage this worker's own outcomes go first.
            await self._lease_set.until(lambda: not self._lease_set.blocked, seconds=lease)
            mine = self._duty.held or not self._sources.claims.shared
            try:
                if mine:
                    await self.sweep()
                if mine or not self._quarantine.idle:
                    waiting = await self._sources.claims.recovered_waiting(self._rules)
                    self._quarantine.expect(waiting)
            except DatabaseError as error:
                logger.debug("the sweep waits for the database: %s", error)
            self.rounds += 1

    async def sweep(self) -> None:
        """Recover until there is nothing left to recover."""
        while True:
            contact = self._lease_set.contact.seconds
            recovery = await self._sources.recover(
                self._rules,
                limit=_RECOVER_BATCH,
                held=self._lease_set.snapshot(),
                contact=None if contact is None else timedelta(seconds=contact),
                lived=timedelta(seconds=self._lease_set.contact.age),
                duty=self._duty.current,
            )
            self._lease_set.contact.made()
            self._publish(recovery)
            if len(recovery.recovered) + len(recovery.retired) < _RECOVER_BATCH:
                return

    def _publish(self, recovery: Recovery) -> None:
        if recovery.excused:
            logger.warning(
                "recovered %d jobs whose leases expired during a database outage; "
                "no recovery is counted for them",
                len(recovery.excused),
            )
        if dead := len(recovery.recovered) - len(recovery.excused):
            logger.warning("recovered %d jobs of dead workers", dead)
        if recovery.recovered:
            self._observers.notify(
                Recovered(self._worker, recovery.recovered, recovery.recovered_by_queue)
            )
        if recovery.retired:
            logger.error("held as crash loops: jobs %s", list(recovery.retired))
            reason, queues = RETIRE_STALE.reason or "", recovery.retired_by_queue
            self._observers.notify(Retired(self._worker, recovery.retired, reason, queues))


class Housekeeper:
    """Runs the periodic upkeep of the store, however long it takes."""

    def __init__(self, claims: Claims, settings: WorkerSettings, duty: UpkeepDuty) -> None:
        self._claims = claims
        self._duty = duty
        self._interval = settings.statistics_interval.total_seconds()
        self.rounds = 0

    async def run(self) -> None:
        """Run until cancelled."""
        while self._interval:
            await _jittered(self._interval)
            try:
                await self._claims.housekeep(self._duty.current)
            except DatabaseError as error:
                logger.debug("housekeeping waits for the database: %s", error)
            self.rounds += 1


class CleanUp:
    """Asks the store to clean up once this worker has ended many jobs."""

    def __init__(self, claims: Claims, dispatcher: Dispatcher) -> None:
        self._claims = claims
        self._dispatcher = dispatcher
        self.rounds = 0

    async def run(self) -> None:
        """Run until cancelled."""
        cleaned = 0
        while True:
            await asyncio.sleep(_CLEAN_UP_SECONDS)
            if self._dispatcher.ended - cleaned < _CLEAN_UP_JOBS:
                continue
            cleaned = self._dispatcher.ended
            try:
                await self._claims.vacuum()
            except DatabaseError as error:
                logger.debug("clean-up waits for the database: %s", error)
            self.rounds += 1


async def _jittered(seconds: float) -> None:
    await asyncio.sleep(seconds * random.uniform(0.7, 1.0))  # noqa: S311 - not a secret
