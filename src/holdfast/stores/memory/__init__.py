"""The memory store: the lifecycle on plain values, the reference that PostgreSQL must agree with.

`state.py` holds the rows and interprets the table; the facets are views of it.
"""

from __future__ import annotations

import asyncio
import copy
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.errors import CarrierError
from holdfast.explanation import MOST_COUNTED, Surroundings
from holdfast.lifecycle import (
    FINAL,
    MOVE_HELD,
    MOVE_LEASED,
    MOVE_WAITING,
    TRANSITIONS,
    Status,
    Transition,
    Verb,
)
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
from holdfast.stores.memory.breakers import MemoryBreakers
from holdfast.stores.memory.leases import MemoryLeases
from holdfast.stores.memory.pauses import MemoryPauses
from holdfast.stores.memory.reports import MemoryReports
from holdfast.stores.memory.results import MemoryResults
from holdfast.stores.memory.schedules import MemorySchedules
from holdfast.stores.memory.state import Asked, Listener, State, given_out
from holdfast.stores.memory.statistics import Statistics
from holdfast.stores.memory.transaction import InMemoryTransaction
from holdfast.stores.memory.upkeep import MemoryUpkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
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

    def __init__(
        self, state: State, workers: dict[str, WorkerInfo], statistics: Statistics
    ) -> None:
        self._state = state
        self._workers = workers
        self._statistics = statistics

    async def insert(self, jobs: Sequence[NewJob], on_conflict: OnConflict) -> list[JobId | None]:
        return self._state.insert(jobs, on_conflict)

    async def raise_priority(self, priorities: Mapping[str, int]) -> dict[str, JobId]:
        owners = {key: self._state.keys[key] for key in priorities if key in self._state.keys}
        for key, job_id in owners.items():
            row = self._state.rows[job_id]
            if row.status in CLAIM.sources and row.priority < priorities[key]:
                raised = row._replace(priority=priorities[key], updated=self._state.now())
                self._state.rows[job_id] = raised
        return owners

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

    async def preview_requeue(self, ids: Sequence[JobId]) -> dict[JobId, Requeued]:
        outcomes = dict.fromkeys(ids, Requeued.NOT_FOUND)
        taken = set(self._state.keys)
        # Of several held jobs with one key the oldest goes.
        for row in self._state.found(ids):
            if row.status not in REQUEUE.sources:
                outcomes[row.id] = Requeued.NOT_HELD
            elif row.dedupe_key is not None and row.dedupe_key in taken:
                outcomes[row.id] = Requeued.KEY_TAKEN
            else:
                outcomes[row.id] = Requeued.REQUEUED
                taken.add(row.dedupe_key)
        return outcomes

    async def remove(
        self, transition: Transition, ids: Sequence[JobId], *, actor: str | None, reason: str | None
    ) -> set[JobId]:
        asked = Asked(self._state.now(), actor=actor, reason=reason)
        gone = [row for row in self._state.found(ids) if self._state.apply(transition, row, asked)]
        self._state.announce_cancel(row.id for row in gone if row.claim_token is not None)
        return {row.id for row in gone}

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
        asked = Asked(
            self._state.now(),
            actor=actor,
            reason=reason,
            entrypoint=entrypoint,
            worker_is_dead=force or worker is not None,
        )
        outcomes = dict.fromkeys(ids, Moved.NOT_FOUND)
        moved: list[Job] = []
        lost: list[JobId] = []
        for row in self._state.found(ids):
            leased = row.status in MOVE_LEASED.sources
            outcomes[row.id] = Moved.LEASED if leased else Moved.KEY_TAKEN
            if worker not in (None, row.claimed_by):
                continue
            for transition in (MOVE_WAITING, MOVE_LEASED, MOVE_HELD):
                if after := self._state.apply(transition, row, asked):
                    outcomes[row.id] = Moved.MOVED
                    moved.append(after)
                    lost += [row.id] if leased else []
                    break
        self._state.announce_cancel(lost)
        self._state.announce(moved, asked.now)
        return outcomes

    async def leased_to(self, worker: str) -> list[JobId]:
        return [row.id for row in self._state.rows.values() if row.claimed_by == worker]

    async def clear(
        self, entrypoints: Sequence[str] | None, *, actor: str | None, reason: str | None
    ) -> int:
        ids = {
            row.id
            for row in self._state.rows.values()
            if entrypoints is None or row.entrypoint in entrypoints
        }
        total = len(ids)
        for verb in (Verb.DELETE, Verb.CANCEL):
            ids -= await self.remove(TRANSITIONS[verb], list(ids), actor=actor, reason=reason)
        return total - len(ids)

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

    async def surroundings(self, job_id: JobId) -> Surroundings:
        [job] = self._state.found([job_id])
        now = self._state.now()
        place = (-job.priority, job.execute_after, job.id)
        before = [
            row
            for row in self._state.rows.values()
            if row.status in CLAIM.sources
            and row.entrypoint == job.entrypoint
            and row.execute_after <= now
            and (-row.priority, row.execute_after, row.id) < place
        ]
        return Surroundings(before=min(len(before), MOST_COUNTED))

    async def first_of(self, entrypoint: str) -> JobId | None:
        waiting = [
            row
            for row in self._state.rows.values()
            if row.status in CLAIM.sources and row.entrypoint == entrypoint
        ]
        first = min(waiting, key=lambda r: (-r.priority, r.execute_after, r.id), default=None)
        return None if first is None else first.id

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
        return self._statistics.with_uncounted(self._state.log).newest(after, limit)

    async def uncounted_since(self) -> datetime | None:
        return None

    async def timings(self, since: timedelta) -> list[Timing]:
        return self._statistics.timings(self._state.now() - since)

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

    async def uncounted(self, older_than: timedelta) -> int:
        before = self._state.now() - older_than
        old = (entry for entry in self._state.log if entry.created < before)
        return sum(not self._statistics.has_counted(entry) for entry in old)

    async def clear_log(self, entrypoints: Sequence[str] | None) -> int:
        before = len(self._state.log)
        self._state.log = [
            entry
            for entry in self._state.log
            if not self._statistics.has_counted(entry)
            or (entrypoints is not None and entry.entrypoint not in entrypoints)
        ]
        return before - len(self._state.log)

    async def clear_statistics(self, entrypoints: Sequence[str] | None) -> int:
        return self._statistics.clear(entrypoints)

    async def workers(self) -> list[WorkerInfo]:
        return sorted(self._workers.values(), key=lambda worker: worker.id)

    async def unrecorded(self) -> int:
        """There is no bookkeeping: the rows themselves say who holds them."""
        return 0

    async def sees_payloads(self) -> bool:
        return True

    async def now(self) -> datetime:
        return self._state.now()


class _JoinedJobs(MemoryJobs):
    """The same inside a transaction, until it ends."""

    def __init__(self, transaction: InMemoryTransaction, workers: dict[str, WorkerInfo]) -> None:
        super().__init__(transaction.state, workers, Statistics())
        self._transaction = transaction

    @property
    def _state(self) -> State:
        self._transaction.check_open()
        return self._transaction.state

    @_state.setter
    def _state(self, state: State) -> None:
        """Nothing to do: the transaction has stored it."""


class MemoryWakeups:
    """The Wakeups facet."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def listen(
        self,
        on_work: Callable[[], None],
        on_cancel: Callable[[JobId], None],
        worker: str = "",
        on_recovered: Callable[[], None] | None = None,
    ) -> None:
        listener = Listener(on_work, on_cancel)
        self._state.listeners.append(listener)
        try:
            on_work()
            await asyncio.Event().wait()
        finally:
            self._state.listeners.remove(listener)

    async def pass_on(self, entrypoints: Sequence[str]) -> None:
        """Every listener was notified already."""

    async def recovered(self) -> None:
        """Every worker looks by itself, so there is nothing to pass on."""

    async def need(self, *, needed: bool) -> None:
        """A notification costs nothing here."""


class MemoryStore:
    """Jobs that live as long as the process, for tests and for trying things out."""

    dedicated = False
    synchronous = False
    needs_loop = False

    def __init__(self, clock: Clock | None = None) -> None:
        self._state = state = State(clock)
        self._workers: dict[str, WorkerInfo] = {}
        workers = self._workers
        statistics = Statistics()
        self.jobs = MemoryJobs(state, workers, statistics)
        self.upkeep = MemoryUpkeep(state, statistics)
        self.leases = MemoryLeases(state, workers, self.upkeep.run)
        self.reports = MemoryReports(state, workers)
        self.results = MemoryResults(state)
        self.schedules = MemorySchedules(state)
        self.breakers = MemoryBreakers(state)
        self.pauses = MemoryPauses(state)
        self.wakeups = MemoryWakeups(state)

    def fork(self, purpose: str) -> MemoryStore:
        return self

    def transaction(self) -> InMemoryTransaction:
        """Begin a transaction that `.on()` takes."""
        return InMemoryTransaction(self._state)

    def age_lease(self, job_id: JobId) -> bool:
        """Make a lease twice as old as it may become; False when the job is not leased."""
        row = self._state.rows.get(job_id)
        if row is None or row.lease is None or row.heartbeat is None:
            return False
        self._state.rows[job_id] = row._replace(heartbeat=row.heartbeat - 2 * row.lease)
        return True

    def on(self, transaction: object, *, autocommit: bool = False) -> MemoryStore:
        if not isinstance(transaction, InMemoryTransaction):
            raise CarrierError(
                f"the in-memory store joins only transactions of its own, such as "
                f"InMemoryDriver.transaction() gives; got {type(transaction).__name__}"
            )
        transaction.check_open()
        if not transaction.belongs_to(self._state):
            raise CarrierError("the in-memory transaction belongs to another queue; begin one here")
        joined = copy.copy(self)
        joined.jobs = _JoinedJobs(transaction, self._workers)
        return joined

    async def verify(self) -> None:
        """There is no schema that could be wrong."""

    async def install(self, only: Only | None = None) -> list[str]:
        return []

    async def notify_inserts(self, *, wanted: bool) -> None:
        """No other program can insert here."""

    async def functions(self, *, wanted: bool) -> None:
        """There is no SQL here."""

    async def notifies_inserts(self) -> bool:
        return False

    async def uninstall(self) -> None:
        """There are no tables to remove."""

    async def close(self) -> None:
        """The jobs stay, for whoever still holds the store."""


class InMemoryDriver:
    """The public handle by which an application chooses this store."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.store = MemoryStore(clock)

    def transaction(self) -> InMemoryTransaction:
        """Begin a transaction, as `async with driver.transaction() as tx:`, for `.on(tx)`."""
        return self.store.transaction()
