"""The producer's and the operator's statements."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.errors import (
    ConnectionLost,
    DatabaseError,
    DuplicateJobError,
    OutcomeUnknown,
    PrivilegeMissing,
)
from holdfast.explanation import Lock, Surroundings
from holdfast.lifecycle import TRANSITIONS, Status, Transition, Verb
from holdfast.models import (
    HeldFilter,
    Job,
    JobId,
    LogEntry,
    Moved,
    NewJob,
    OnConflict,
    QueueSize,
    Requeued,
    Statistic,
    Timing,
    WorkerInfo,
)
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.batcher import EnqueueBatcher
from holdfast.stores.postgres.idempotent_enqueue import Inserter
from holdfast.stores.postgres.rollup import StatisticsRollup
from holdfast.stores.postgres.runner import MEMORY, Runner, refuses_temporary_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.settings import Names
    from holdfast.stores.postgres.drivers.base import Driver


_WINDOWS = (timedelta(minutes=5), timedelta(hours=2), timedelta(days=2), None)
_REQUEUE_TRIES = 5
_MOST_JOBS_A_STATEMENT = 10_000
"""Bound of an operator's statement, so that it ends in time on a slow server as well."""

_OVERTAKERS = 3
"""How many slow enqueue statements may be overtaken on further connections of a pool."""


class PostgresJobs:
    """The statements that only a queue has: insert, requeue, remove, read."""

    def __init__(self, runner: Runner, names: Names, *, notify: bool) -> None:
        self._runner = runner
        self._channel = names.channel
        self._notify_channel = names.channel if notify else None
        self._inserter = Inserter(runner, self._notify_channel)
        self._beside: Driver | None = None
        self._batcher: EnqueueBatcher | None = None
        self._table = names.table()
        self._may_roll_up = True
        self._rollup = StatisticsRollup()
        self._sees_payloads: bool | None = None

    async def insert(self, jobs: Sequence[NewJob], on_conflict: OnConflict) -> list[JobId | None]:
        if not jobs:
            return []
        try:
            if self._runner.driver.autocommits:
                batcher = self._batcher
                if batcher is None or not batcher.at_home:
                    batcher = self._batcher = self._new_batcher()
                return await batcher.insert(jobs, on_conflict)
            return await self._inserter.insert(jobs, on_conflict, monotonic())
        except ConnectionLost as error:
            raise OutcomeUnknown(
                f"the connection was lost while enqueuing {len(jobs)} job(s) ({error}): they may "
                f"or may not be in the queue; enqueue with a dedupe_key to make trying again safe"
            ) from error

    def _new_batcher(self) -> EnqueueBatcher:
        overtakers = _OVERTAKERS if self._runner.driver.concurrent else 0
        return EnqueueBatcher(
            self._inserter.insert, overtakers=overtakers, beside=self._second().insert
        )

    def _second(self) -> Inserter:
        """Return an inserter on a second connection, which is opened on first use."""
        if not self._runner.driver.spare:
            return self._inserter
        if self._beside is None:
            self._beside = self._runner.driver.fork("enqueue")
        return Inserter(self._runner.over(self._beside), self._notify_channel)

    async def close(self) -> None:
        if self._beside is not None:
            await self._beside.close()

    async def raise_priority(self, priorities: Mapping[str, int]) -> dict[str, JobId]:
        keys = sorted(priorities)
        found = await self._runner.run(
            "raise_priority", dedupe_keys=keys, priorities=[priorities[key] for key in keys]
        )
        return {row[0]: JobId(row[1]) for row in found}

    async def requeue(
        self,
        ids: Sequence[JobId],
        *,
        actor: str | None,
        reason: str | None,
        max_attempts: int | None = None,
    ) -> dict[JobId, Requeued]:
        outcomes: dict[JobId, Requeued] = {}
        for batch in _batches(ids):
            for row in await self._requeued(
                Verb.REQUEUE, ids=batch, actor=actor, reason=reason, max_attempts=max_attempts
            ):
                outcomes[JobId(row[0])] = _requeue_outcome(held=row[1], free=row[2])
        return {job_id: outcomes.get(job_id, Requeued.NOT_FOUND) for job_id in ids}

    async def preview_requeue(self, ids: Sequence[JobId]) -> dict[JobId, Requeued]:
        outcomes: dict[JobId, Requeued] = {}
        for bite in _batches(ids):
            for row in await self._runner.run("requeue_preview", ids=bite):
                outcomes[JobId(row[0])] = _requeue_outcome(held=row[1], free=row[2])
        return {job_id: outcomes.get(job_id, Requeued.NOT_FOUND) for job_id in ids}

    async def move(
        self,
        ids: Sequence[JobId],
        entrypoint: str | None,
        *,
        actor: str | None,
        reason: str | None,
        force: bool = False,
        worker: str | None = None,
    ) -> dict[JobId, Moved]:
        outcomes: dict[JobId, Moved] = {}
        for batch in _batches(ids):
            for row in await self._requeued(
                Verb.MOVE,
                ids=batch,
                entrypoint=entrypoint,
                actor=actor,
                reason=reason,
                force=force,
                worker=worker,
            ):
                outcomes[JobId(row[0])] = _move_outcome(free=row[1], leased=row[2])
        return {job_id: outcomes.get(job_id, Moved.NOT_FOUND) for job_id in ids}

    async def leased_to(self, worker: str) -> list[JobId]:
        return [JobId(row[0]) for row in await self._runner.run("leased_to", worker=worker)]

    async def _requeued(
        self, statement: str, *, ids: list[JobId], **values: object
    ) -> Sequence[rows.Row]:
        """Lock the rows and run a statement that queues them again."""
        found: Sequence[rows.Row] = ()
        for remaining in reversed(range(_REQUEUE_TRIES)):
            try:
                # In a caller's transaction this is a savepoint, which a second try needs.
                async with self._runner.driver.transaction() as tx:
                    inside = self._runner.over(tx)
                    await inside.run("lock", ids=ids)
                    found = await inside.run(statement, ids=ids, channel=self._channel, **values)
                break
            except DuplicateJobError:
                # Another session enqueued the key between our read and our write: try again.
                if not remaining:
                    raise
        return found

    async def remove(
        self, transition: Transition, ids: Sequence[JobId], *, actor: str | None, reason: str | None
    ) -> set[JobId]:
        gone: set[JobId] = set()
        for batch in _batches(ids):
            found = await self._runner.run(
                transition.name, ids=batch, actor=actor, reason=reason, channel=self._channel
            )
            gone |= {JobId(row[0]) for row in found}
        return gone

    async def clear(
        self, entrypoints: Sequence[str] | None, *, actor: str | None, reason: str | None
    ) -> int:
        before, after, total = await self.now(), 0, 0
        wanted = None if entrypoints is None else list(entrypoints)
        while found := await self._runner.run(
            "ids", entrypoints=wanted, after=after, before=before, limit=_MOST_JOBS_A_STATEMENT
        ):
            ids = {JobId(row[0]) for row in found}
            after = max(ids)
            for transition in (TRANSITIONS[Verb.DELETE], TRANSITIONS[Verb.CANCEL]):
                gone = await self.remove(transition, list(ids), actor=actor, reason=reason)
                ids -= gone
                total += len(gone)
        return total

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
        """Read jobs. Users without the privilege get them without payload and headers."""
        name = statement if await self.sees_payloads() else f"{statement}:hidden"
        return [rows.job(row) for row in await self._runner.run(name, **values)]

    async def unrecorded(self) -> int:
        [[count]] = await self._runner.run("unrecorded")
        return int(count)

    async def sees_payloads(self) -> bool:
        if self._sees_payloads is None:
            [[self._sees_payloads]] = await self._runner.run("sees_payloads", table=self._table)
        return bool(self._sees_payloads)

    async def size(self, entrypoints: Sequence[str] | None) -> list[QueueSize]:
        wanted = None if entrypoints is None else list(entrypoints)
        found = await self._runner.run("size", entrypoints=wanted)
        return [QueueSize(row[0], row[1], rows.status(row[2]), row[3]) for row in found]

    async def surroundings(self, job_id: JobId) -> Surroundings:
        found = await self._runner.run("explain_job", id=job_id)
        if not found:
            return Surroundings()
        [(before, running, pid, age, query)] = found
        return Surroundings(
            before=before,
            running_under_limit=None if running is None else tuple(running),
            lock=None if pid is None else Lock(pid, age, query),
        )

    async def first_of(self, entrypoint: str) -> JobId | None:
        found = await self._runner.run("explain_first", entrypoint=entrypoint)
        return JobId(found[0][0]) if found else None

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
        """Count new log rows. A user who may only read leaves that to the workers."""
        total, more = 0, self._may_roll_up
        try:
            while more:
                try:
                    counted, more = await self._roll_up_batch()
                except DatabaseError as error:
                    if not refuses_temporary_files(error):
                        raise
                    counted, more = await self._roll_up_batch(MEMORY)
                total += counted
        except PrivilegeMissing:
            self._may_roll_up = False
        return total

    async def _roll_up_batch(self, *before: str) -> tuple[int, bool]:
        # In a caller's transaction this is a savepoint, which a refusal needs.
        async with self._runner.driver.transaction() as tx:
            for statement in before:
                await tx.fetch(statement)
            return await self._rollup.count_batch(self._runner.over(tx))

    async def statistics(self, *, since: timedelta | None, limit: int) -> list[Statistic]:
        found = await self._runner.run("statistics", since=since, limit=limit)
        return [rows.statistic(row) for row in found]

    async def uncounted_since(self) -> datetime | None:
        [[since]] = await self._runner.run("uncounted_since")
        return since if isinstance(since, datetime) else None

    async def timings(self, since: timedelta) -> list[Timing]:
        found = await self._runner.run("timings", since=since)
        # Positions rise from 0 without a gap.
        return [
            Timing(
                name,
                waited=tuple(int(row[2] or 0) for row in counts),
                ran=tuple(int(row[3] or 0) for row in counts),
            )
            for name, some in groupby(found, itemgetter(0))
            for counts in [list(some)]
        ]

    async def prune(self, *, older_than: timedelta, limit: int) -> int:
        [[gone]] = await self._runner.run("prune", older_than=older_than, limit=limit)
        return int(gone)

    async def uncounted(self, older_than: timedelta) -> int:
        [[left]] = await self._runner.run("uncounted", older_than=older_than)
        return int(left)

    async def clear_log(self, entrypoints: Sequence[str] | None) -> int:
        total, job, entry = 0, 0, 0
        wanted = None if entrypoints is None else list(entrypoints)
        while found := await self._runner.run(
            "clear_log",
            entrypoints=wanted,
            after_job=job,
            after=entry,
            limit=_MOST_JOBS_A_STATEMENT,
        ):
            [[job, entry, count]] = found
            total += count
        return total

    async def clear_statistics(self, entrypoints: Sequence[str] | None) -> int:
        wanted = None if entrypoints is None else list(entrypoints)
        [[gone]] = await self._runner.run("clear_statistics", entrypoints=wanted)
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


def _batches(ids: Sequence[JobId]) -> list[list[JobId]]:
    """Sort the ids, so that no two statements can deadlock."""
    ordered = sorted(set(ids))
    return [
        ordered[start : start + _MOST_JOBS_A_STATEMENT]
        for start in range(0, len(ordered), _MOST_JOBS_A_STATEMENT)
    ]


def _move_outcome(*, free: bool, leased: bool) -> Moved:
    if free:
        return Moved.MOVED
    return Moved.LEASED if leased else Moved.KEY_TAKEN


def _requeue_outcome(*, held: bool, free: bool) -> Requeued:
    if not held:
        return Requeued.NOT_HELD
    return Requeued.REQUEUED if free else Requeued.KEY_TAKEN
