"""The producer's and the operator's statements."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.errors import (
    ConnectionLost,
    DuplicateJobError,
    OutcomeUnknown,
    PrivilegeMissing,
)
from holdfast.lifecycle import Status, Transition, Verb
from holdfast.models import (
    HeldFilter,
    Job,
    JobId,
    LogEntry,
    NewJob,
    OnConflict,
    QueueSize,
    Requeued,
    Statistic,
    WorkerInfo,
)
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.counting import Counting
from holdfast.stores.postgres.gathering import Gathering
from holdfast.stores.postgres.inserting import Inserter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.settings import Names
    from holdfast.stores.postgres.drivers.base import Driver
    from holdfast.stores.postgres.runner import Runner

_WINDOWS = (timedelta(minutes=5), timedelta(hours=2), timedelta(days=2), None)
_REQUEUE_TRIES = 5
_BITE = 10_000
"""Most jobs that an operator's statement touches: even on a slow server it ends in time."""

_OVERTAKERS = 3
"""How many slow enqueue statements others may pass by on further connections of a pool."""


class PostgresJobs:
    """What only a queue needs: insert, requeue, remove, read."""

    def __init__(self, runner: Runner, names: Names, *, notify: bool) -> None:
        self._runner = runner
        self._channel = names.channel
        self._told = names.channel if notify else None
        self._inserter = Inserter(runner, self._told)
        self._beside: Driver | None = None
        self._gathering: Gathering | None = None
        self._table = names.table()
        self._may_count = True
        self._counting = Counting()
        self._sees_payloads: bool | None = None

    async def insert(self, jobs: Sequence[NewJob], on_conflict: OnConflict) -> list[JobId | None]:
        if not jobs:
            return []
        try:
            if self._runner.driver.autocommits:
                return await self._gather().insert(jobs, on_conflict)
            return await self._inserter.insert(jobs, on_conflict, monotonic())
        except ConnectionLost as error:
            raise OutcomeUnknown(
                f"the connection was lost while enqueuing {len(jobs)} job(s) ({error}): they may "
                f"or may not be in the queue; enqueue with a dedupe_key to make trying again safe"
            ) from error

    def _gather(self) -> Gathering:
        if self._gathering is None or not self._gathering.at_home:
            overtakers = _OVERTAKERS if self._runner.driver.concurrent else 0
            self._gathering = Gathering(
                self._inserter.insert, overtakers=overtakers, beside=self._second().insert
            )
        return self._gathering

    def _second(self) -> Inserter:
        """Over a connection that is opened when it is used for the first time."""
        if not self._runner.driver.dedicated:
            return self._inserter
        if self._beside is None:
            self._beside = self._runner.driver.fork("enqueue")
        return Inserter(self._runner.over(self._beside), self._told)

    async def close(self) -> None:
        if self._beside is not None:
            await self._beside.close()

    async def requeue(
        self,
        ids: Sequence[JobId],
        *,
        actor: str | None,
        reason: str | None,
        max_attempts: int | None = None,
    ) -> dict[JobId, Requeued]:
        outcomes: dict[JobId, Requeued] = {}
        for bite in _bites(ids):
            for row in await self._requeue(bite, actor, reason, max_attempts):
                outcomes[JobId(row[0])] = _requeue_outcome(held=row[1], free=row[2])
        return {job_id: outcomes.get(job_id, Requeued.NOT_FOUND) for job_id in ids}

    async def _requeue(
        self, ids: list[JobId], actor: str | None, reason: str | None, max_attempts: int | None
    ) -> Sequence[rows.Row]:
        found: Sequence[rows.Row] = ()
        for remaining in reversed(range(_REQUEUE_TRIES)):
            try:
                # In a caller's transaction this is a savepoint, which a second look needs.
                async with self._runner.driver.transaction() as tx:
                    found = await self._runner.over(tx).run(
                        Verb.REQUEUE,
                        ids=ids,
                        actor=actor,
                        reason=reason,
                        max_attempts=max_attempts,
                        channel=self._channel,
                    )
                break
            except DuplicateJobError:
                # Somebody enqueued the key between our look and our write: look again.
                if not remaining:
                    raise
        return found

    async def remove(
        self, transition: Transition, ids: Sequence[JobId], *, actor: str | None, reason: str | None
    ) -> set[JobId]:
        gone: set[JobId] = set()
        for bite in _bites(ids):
            found = await self._runner.run(
                transition.name, ids=bite, actor=actor, reason=reason, channel=self._channel
            )
            gone |= {JobId(row[0]) for row in found}
        return gone

    async def get(self, ids: Sequence[JobId]) -> list[Job]:
        return await self._see("get", ids=list(ids))

    async def statuses(self, ids: Sequence[JobId]) -> dict[JobId, Status]:
        found = await self._runner.run("statuses", ids=list(ids))
        return {JobId(row[0]): rows.status(row[1]) for row in found}

    async def list_held(self, limit: int, among: HeldFilter) -> list[Job]:
        return await self._see("list_held", limit=limit, **asdict(among))

    async def edit(
        self, job_id: JobId, payload: bytes | None, *, actor: str | None, reason: str | None
    ) -> bool:
        return bool(
            await self._runner.run(
                Verb.EDIT, id=job_id, payload=payload, actor=actor, reason=reason
            )
        )

    async def list_running(self, limit: int) -> list[Job]:
        return await self._see("list_running", limit=limit)

    async def oldest(self) -> dict[str, datetime]:
        return {row[0]: row[1] for row in await self._runner.run("oldest")}

    async def browse(
        self, *, status: Status | None, entrypoint: str | None, limit: int
    ) -> list[Job]:
        return await self._see("browse", status=status, entrypoint=entrypoint, limit=limit)

    async def _see(self, statement: str, **values: object) -> list[Job]:
        """Jobs, for some without what they carry."""
        name = statement if await self.sees_payloads() else f"{statement}:hidden"
        return [rows.job(row) for row in await self._runner.run(name, **values)]

    async def sees_payloads(self) -> bool:
        if self._sees_payloads is None:
            [[self._sees_payloads]] = await self._runner.run("sees_payloads", table=self._table)
        return bool(self._sees_payloads)

    async def size(self, entrypoints: Sequence[str] | None) -> list[QueueSize]:
        wanted = None if entrypoints is None else list(entrypoints)
        found = await self._runner.run("size", entrypoints=wanted)
        return [QueueSize(row[0], row[1], rows.status(row[2]), row[3]) for row in found]

    async def history(self, job_id: JobId) -> list[LogEntry]:
        return [rows.log_entry(row) for row in await self._runner.run("history", job_id=job_id)]

    async def log(
        self,
        *,
        limit: int,
        status: Status | None,
        entrypoint: str | None,
        since: timedelta | None = None,
    ) -> list[LogEntry]:
        """Look back in growing steps, so that the newest rows never cost a scan of all."""
        found: Sequence[rows.Row] = ()
        for window in _windows(since):
            found = await self._runner.run(
                "log", within=window, limit=limit, status=status, entrypoint=entrypoint
            )
            if len(found) >= limit:
                break
        return [rows.log_entry(row) for row in found]

    async def aggregate(self) -> int:
        """For whoever may only read, the counts are as new as a worker's last look."""
        total, more = 0, self._may_count
        try:
            while more:
                # In a caller's transaction this is a savepoint, which a refusal needs.
                async with self._runner.driver.transaction() as tx:
                    counted, more = await self._counting.bite(self._runner.over(tx))
                total += counted
        except PrivilegeMissing:
            self._may_count = False
        return total

    async def statistics(self, *, since: timedelta | None, limit: int) -> list[Statistic]:
        found = await self._runner.run("statistics", since=since, limit=limit)
        return [
            Statistic(row[0], row[1], row[2], rows.status(row[3]), row[4], row[5]) for row in found
        ]

    async def prune(self, *, older_than: timedelta, limit: int) -> int:
        [[gone]] = await self._runner.run("prune", older_than=older_than, limit=limit)
        return int(gone)

    async def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo(*row) for row in await self._runner.run("workers")]

    async def now(self) -> datetime:
        [[now]] = await self._runner.run("now")
        assert isinstance(now, datetime)  # noqa: S101 - narrows Any
        return now


def _windows(since: timedelta | None) -> tuple[timedelta | None, ...]:
    if since is None:
        return _WINDOWS
    return (*(window for window in _WINDOWS if window is not None and window < since), since)


def _bites(ids: Sequence[JobId]) -> list[list[JobId]]:
    """In one order, so that no two statements can deadlock."""
    ordered = sorted(set(ids))
    return [ordered[start : start + _BITE] for start in range(0, len(ordered), _BITE)]


def _requeue_outcome(*, held: bool, free: bool) -> Requeued:
    if not held:
        return Requeued.NOT_HELD
    return Requeued.REQUEUED if free else Requeued.KEY_TAKEN
