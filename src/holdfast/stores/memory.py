"""The memory store: the lifecycle on plain values, the reference that PostgreSQL must agree with.

`memory_state.py` holds the rows and interprets the table; the facets are views of it.
"""

from __future__ import annotations

import asyncio
import copy
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.errors import InvalidInput
from holdfast.lifecycle import FINAL, TRANSITIONS, Status, Transition, Verb
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
from holdfast.stores.memory_breakers import MemoryBreakers
from holdfast.stores.memory_leases import MemoryLeases
from holdfast.stores.memory_schedules import MemorySchedules
from holdfast.stores.memory_state import Asked, Listener, State, given_out
from holdfast.stores.memory_statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from holdfast.clock import Clock
    from holdfast.ports import Only

CLAIM = TRANSITIONS[Verb.CLAIM]
REQUEUE = TRANSITIONS[Verb.REQUEUE]


EDIT = TRANSITIONS[Verb.EDIT]


def _is_among(row: Job, among: HeldFilter, now: datetime) -> bool:
    held_for = now - row.held_at if row.held_at else timedelta(0)
    return (
        among.entrypoint in (None, row.entrypoint)
        and (among.error is None or among.error.lower() in (row.last_error or "").lower())
        and (among.since is None or held_for <= among.since)
        and (among.older_than is None or held_for > among.older_than)
    )


def _age(row: Job | LogEntry) -> tuple[datetime, int]:
    return row.created, row.id


class MemoryJobs:
    """The Jobs facet."""

    def __init__(self, state: State, workers: dict[str, WorkerInfo]) -> None:
        self._state = state
        self._workers = workers
        self._statistics = Statistics()

    async def insert(self, jobs: Sequence[NewJob], on_conflict: OnConflict) -> list[JobId | None]:
        return self._state.insert(jobs, on_conflict)

    async def requeue(
        self,
        ids: Sequence[JobId],
        *,
        actor: str | None,
        reason: str | None,
        max_attempts: int | None = None,
    ) -> dict[JobId, Requeued]:
        asked = Asked(self._state.now(), actor=actor, reason=reason)
        outcomes = dict.fromkeys(ids, Requeued.NOT_FOUND)
        requeued: list[Job] = []
        for row in self._state.found(ids):
            if row.status not in REQUEUE.sources:
                outcomes[row.id] = Requeued.NOT_HELD
            elif after := self._state.apply(REQUEUE, row, asked):
                if max_attempts is not None:
                    self._state.rows[row.id] = after._replace(max_attempts=max_attempts)
                outcomes[row.id] = Requeued.REQUEUED
                requeued.append(after)
            else:
                outcomes[row.id] = Requeued.KEY_TAKEN
        self._state.announce(requeued, asked.now)
        return outcomes

    async def remove(
        self, transition: Transition, ids: Sequence[JobId], *, actor: str | None, reason: str | None
    ) -> set[JobId]:
        asked = Asked(self._state.now(), actor=actor, reason=reason)
        gone = [row for row in self._state.found(ids) if self._state.apply(transition, row, asked)]
        self._state.announce_cancel(row.id for row in gone if row.claim_token is not None)
        return {row.id for row in gone}

    async def get(self, ids: Sequence[JobId]) -> list[Job]:
        return [given_out(row) for row in self._state.found(ids)]

    async def statuses(self, ids: Sequence[JobId]) -> dict[JobId, Status]:
        wanted = set(ids)
        ended = {
            entry.job_id: entry.status
            for entry in self._state.log
            if entry.job_id in wanted and entry.status in FINAL
        }
        return ended | {row.id: row.status for row in self._state.found(ids)}

    async def edit(
        self, job_id: JobId, payload: bytes | None, *, actor: str | None, reason: str | None
    ) -> bool:
        asked = Asked(self._state.now(), actor=actor, reason=reason, payload=payload)
        rows = self._state.found([job_id])
        return any([self._state.apply(EDIT, row, asked) for row in rows])

    async def list_held(self, limit: int, among: HeldFilter) -> list[Job]:
        now = self._state.now()
        held = [
            row
            for row in self._state.rows.values()
            if row.status in REQUEUE.sources and _is_among(row, among, now)
        ]
        held.sort(key=_age, reverse=True)
        return [given_out(row) for row in held[:limit]]

    async def list_running(self, limit: int) -> list[Job]:
        leased = [
            (row.claimed_at, row.id, row)
            for row in self._state.rows.values()
            if row.claimed_at is not None
        ]
        return [given_out(row) for _, _, row in sorted(leased)[:limit]]

    async def oldest(self) -> dict[str, datetime]:
        now = self._state.now()
        due = [
            (row.entrypoint, row.execute_after)
            for row in self._state.rows.values()
            if row.status in CLAIM.sources and row.execute_after <= now
        ]
        # Of several values of one key a dict keeps the last.
        return dict(sorted(due, key=lambda found: found[1], reverse=True))

    async def browse(
        self, *, status: Status | None, entrypoint: str | None, limit: int
    ) -> list[Job]:
        rows = (
            row
            for row in reversed(self._state.rows.values())
            if status in (None, row.status) and entrypoint in (None, row.entrypoint)
        )
        return [given_out(row) for row in islice(rows, limit)]

    async def size(self, entrypoints: Sequence[str] | None) -> list[QueueSize]:
        counts: dict[tuple[str, int, Status], int] = {}
        for row in self._state.rows.values():
            if entrypoints is None or row.entrypoint in entrypoints:
                kind = row.entrypoint, row.priority, row.status
                counts[kind] = counts.get(kind, 0) + 1
        return [QueueSize(*kind, counts[kind]) for kind in sorted(counts)]

    async def history(self, job_id: JobId) -> list[LogEntry]:
        return [copy.deepcopy(entry) for entry in self._state.log if entry.job_id == job_id]

    async def log(
        self,
        *,
        limit: int,
        status: Status | None,
        entrypoint: str | None,
        since: timedelta | None = None,
    ) -> list[LogEntry]:
        after = None if since is None else self._state.now() - since
        entries = (
            entry
            for entry in sorted(self._state.log, key=_age, reverse=True)
            if status in (None, entry.status)
            and entrypoint in (None, entry.entrypoint)
            and (after is None or entry.created > after)
        )
        return [copy.deepcopy(entry) for entry in islice(entries, limit)]

    async def aggregate(self) -> int:
        return self._statistics.count(self._state.log)

    async def statistics(self, *, since: timedelta | None, limit: int) -> list[Statistic]:
        after = None if since is None else self._state.now() - since
        return self._statistics.newest(after, limit)

    async def prune(self, *, older_than: timedelta, limit: int) -> int:
        before = self._state.now() - older_than
        old = [
            entry
            for entry in self._state.log
            if entry.created < before and self._statistics.has_counted(entry)
        ]
        old.sort(key=_age)
        gone = {entry.id for entry in old[:limit]}
        self._state.log = [entry for entry in self._state.log if entry.id not in gone]
        return len(gone)

    async def workers(self) -> list[WorkerInfo]:
        return sorted(self._workers.values(), key=lambda worker: worker.id)

    async def sees_payloads(self) -> bool:
        return True

    async def now(self) -> datetime:
        return self._state.now()


class MemoryWakeups:
    """The Wakeups facet."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def listen(self, on_work: Callable[[], None], on_cancel: Callable[[JobId], None]) -> None:
        listener = Listener(on_work, on_cancel)
        self._state.listeners.append(listener)
        try:
            on_work()
            await asyncio.Event().wait()
        finally:
            self._state.listeners.remove(listener)

    async def need(self, *, needed: bool) -> None:
        """Telling costs nothing here."""


class MemoryStore:
    """Jobs that live as long as the process, for tests and for trying things out."""

    dedicated = False

    def __init__(self, clock: Clock | None = None) -> None:
        state = State(clock)
        workers: dict[str, WorkerInfo] = {}
        self.jobs = MemoryJobs(state, workers)
        self.leases = MemoryLeases(state, workers, self.jobs.aggregate)
        self.schedules = MemorySchedules(state)
        self.breakers = MemoryBreakers(state)
        self.wakeups = MemoryWakeups(state)

    def fork(self, role: str) -> MemoryStore:
        return self

    def on(self, connection: object) -> MemoryStore:
        raise InvalidInput(
            f"the in-memory store has no transactions, so it cannot use {connection!r}"
        )

    async def verify(self) -> None:
        """There is no schema that could be wrong."""

    async def install(self, only: Only | None = None) -> list[str]:
        return []

    async def uninstall(self) -> None:
        """There are no tables to remove."""

    async def close(self) -> None:
        """The jobs stay, for whoever still holds the store."""


class InMemoryDriver:
    """The public handle by which an application chooses this store."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.store = MemoryStore(clock)
