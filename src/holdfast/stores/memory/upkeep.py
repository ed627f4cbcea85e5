"""The upkeep of the memory store: how long its log is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lifecycle import Status
from holdfast.models import DueJobs, Duty
from holdfast.settings import Retention

if TYPE_CHECKING:
    from datetime import timedelta
    from uuid import UUID

    from holdfast.models import LogEntry
    from holdfast.stores.memory.state import State
    from holdfast.stores.memory.statistics import Statistics


class MemoryUpkeep:
    """The Upkeep facet."""

    def __init__(self, state: State, statistics: Statistics) -> None:
        self._state = state
        self._statistics = statistics
        self._retention = Retention()

    async def run(self) -> None:
        """Count the log, then delete what has expired."""
        self._statistics.count(self._state.log)
        await self.delete_expired(limit=len(self._state.log))

    async def retention(self) -> Retention:
        return self._retention

    async def set_retention(self, retention: Retention) -> None:
        self._retention = retention

    async def delete_expired(self, *, limit: int) -> int:
        expired = [entry.id for entry in self._state.log if self._is_expired(entry)]
        gone = set(expired[:limit])
        self._state.log = [entry for entry in self._state.log if entry.id not in gone]
        return len(gone)

    async def hold(
        self, duty: str, worker: str, token: UUID, *, lasts: timedelta, sent: float
    ) -> Duty:
        """Every worker may: they share a process, so none of them dies or freezes alone."""
        return Duty(token, held=True, workers=1, now=self._state.now(), sent=sent)

    async def release(self, duty: str, token: UUID) -> None:
        """No other worker can wait for the duty."""

    async def look(self, grace: timedelta) -> DueJobs:
        """Every worker looks by itself."""
        return DueJobs()

    async def free_connections(self) -> float:
        """Nothing needs one."""
        return 1.0

    def _is_expired(self, entry: LogEntry) -> bool:
        retention = self._retention
        kept = retention.succeeded if entry.status is Status.SUCCESSFUL else retention.others
        return (
            kept is not None
            and entry.created < self._state.now() - kept
            and entry.job_id not in self._state.rows
            and self._statistics.has_counted(entry)
        )
