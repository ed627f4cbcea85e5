"""The upkeep that one worker does for all, and how long log rows are kept."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.errors import PrivilegeMissing, SchemaMissing
from holdfast.models import DueJobs, Duty
from holdfast.settings import Retention

if TYPE_CHECKING:
    from datetime import timedelta
    from uuid import UUID

    from holdfast.stores.postgres.runner import Runner

logger = logging.getLogger("holdfast.worker")

_EVERY_SECONDS = 300.0
"""How often the holder of the upkeep deletes log rows whose time is over."""

_BATCH = 2_000
"""Log rows that one statement deletes."""

_MOST_BATCHES = 50
"""Batches in a row. A long backlog of rows must not delay the rest of the upkeep."""


class PostgresUpkeep:
    """Retention of the log on one set of tables."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def retention(self) -> Retention:
        found = await self._runner.run("retention_read")
        # Without a row, as after a restore of half the tables, nothing is deleted.
        return Retention(*found[0]) if found else Retention(None, None)

    async def set_retention(self, retention: Retention) -> None:
        values = {"succeeded": retention.succeeded, "others": retention.others}
        if not await self._runner.run("retention_write", **values):
            raise SchemaMissing(
                "the row that says how long log rows are kept is gone; insert one: "
                "insert into holdfast_retention default values"
            )

    async def delete_expired(self, *, limit: int, holder: UUID | None = None) -> int:
        [[gone]] = await self._runner.run("delete_expired", limit=limit, holder=holder)
        return int(gone)

    async def hold(
        self, duty: str, worker: str, token: UUID, *, lasts: timedelta, sent: float
    ) -> Duty:
        [[held, workers, now]] = await self._runner.run(
            "upkeep_hold", duty=duty, worker=worker, token=token, lasts=lasts
        )
        return Duty(token, held, workers, now, sent)

    async def release(self, duty: str, token: UUID) -> None:
        await self._runner.run("upkeep_release", duty=duty, token=token)

    async def look(self, grace: timedelta) -> DueJobs:
        found = await self._runner.run("upkeep_look", grace=grace)
        return DueJobs(
            overdue=sorted(row[0] for row in found if row[1]),
            recovered=any(row[2] for row in found),
            next_due=min((row[3] for row in found if row[3] is not None), default=None),
        )

    async def free_connections(self) -> float:
        [[share]] = await self._runner.run("free_connections")
        return float(share)


class LogRetention:
    """Deletes expired log rows in small batches, now and then."""

    def __init__(self) -> None:
        self._next_at = monotonic()

    async def run(self, runner: Runner, holder: UUID | None) -> None:
        """Call it after the log was counted. Rows that are not counted yet stay."""
        if monotonic() < self._next_at:
            return
        upkeep, more = PostgresUpkeep(runner), False
        try:
            for _ in range(_MOST_BATCHES):
                more = await upkeep.delete_expired(limit=_BATCH, holder=holder) == _BATCH
                if not more:
                    break
        except PrivilegeMissing:
            logger.warning(
                "log rows whose retention is over are not deleted: this worker's role may not "
                "delete from the log; grant it the role of the pruner, or run "
                "`holdfast retention apply` now and then as one that has it"
            )
            self._next_at = monotonic() + 12 * _EVERY_SECONDS
            return
        self._next_at = monotonic() + (0.0 if more else _EVERY_SECONDS)
