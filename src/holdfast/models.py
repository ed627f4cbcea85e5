"""The values that travel: a job's way is NewJob -> Job (claimed) -> Outcome -> Change."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NewType

if TYPE_CHECKING:
    from concurrent.futures import Future
    from uuid import UUID

    from holdfast.lifecycle import Status

JobId = NewType("JobId", int)
Headers = Mapping[str, Any]
OnConflict = Literal["raise", "skip"]
OnFailure = Literal["delete", "hold"]


class NewJob(NamedTuple):
    """A job to be enqueued. `execute_after` is a delay from now or an aware instant."""

    entrypoint: str
    payload: bytes | None = None
    priority: int = 0
    execute_after: timedelta | datetime | None = None
    dedupe_key: str | None = None
    headers: Headers | None = None
    max_attempts: int | None = None
    max_recoveries: int | None = None


class Job(NamedTuple):
    """A row of the queue table. A named tuple because a worker makes tens of thousands a second."""

    id: JobId
    entrypoint: str
    payload: bytes | None
    priority: int
    status: Status
    execute_after: datetime
    attempts: int
    recoveries: int
    max_attempts: int | None
    max_recoveries: int | None
    dedupe_key: str | None
    headers: dict[str, Any] | None
    created: datetime
    updated: datetime
    heartbeat: datetime | None
    claim_token: UUID | None
    claimed_by: str | None
    claimed_at: datetime | None
    lease: timedelta | None
    last_error: str | None
    last_error_at: datetime | None
    held_at: datetime | None
    row: Mapping[str, Any] | None = None
    """The whole row, where the job is one of the user's own table."""

    @property
    def queue(self) -> str:
        """The user's table that the row belongs to; empty for Holdfast's own."""
        return self.entrypoint if self.row is not None else ""


SOON = timedelta(minutes=1)
"""Work that will be due within this is announced like work that is due: whoever sleeps learns when
to wake."""


@dataclass(slots=True, eq=False)
class Room:
    """How many more jobs a worker can take: each statement of a claim counts down what it took."""

    left: int


@dataclass(frozen=True, slots=True)
class Want:
    """An entrypoint a worker can run, and the rules it claims under."""

    entrypoint: str
    lease: timedelta
    max_attempts: int | None = 25
    max_recoveries: int = 3
    concurrency_limit: int = 0
    room: Room | None = None
    """For jobs of this entrypoint; None: for as many as there are."""

    def fit(self, count: int) -> int:
        """As many of them as there is room for."""
        return count if self.room is None else min(count, self.room.left)

    def took(self, count: int) -> None:
        """So many were claimed."""
        if self.room is not None:
            self.room.left -= count


class Held(NamedTuple):
    """The identity of a lease: what every later write about the claim must name."""

    id: JobId
    token: UUID
    queue: str = ""
    """The user's table that the row belongs to; empty for Holdfast's own."""


@dataclass(frozen=True, slots=True)
class TracebackRecord:
    """What went wrong, as stored in the log's `traceback` column."""

    exception_type: str
    exception_message: str
    traceback: str
    additional_context: Mapping[str, Any] | None = None
    job_id: int | None = None
    timestamp: datetime | None = None


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned."""


@dataclass(frozen=True, slots=True)
class Retried:
    """The handler asked to be run again."""

    delay: timedelta
    error: str
    traceback: TracebackRecord | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised; the job leaves the queue."""

    error: str
    traceback: TracebackRecord | None = None


@dataclass(frozen=True, slots=True)
class Parked:
    """The handler raised; the job is held for a person."""

    error: str
    traceback: TracebackRecord | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """Handed back without counting anything."""

    reason: str


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The lease is somebody else's, or the job was cancelled: there is nothing to write."""

    reason: str


Outcome = Succeeded | Retried | Failed | Parked | Released | Abandoned


class Change(NamedTuple):
    """One row's part of a set-based transition made by the holder of a lease."""

    held: Held
    delay: timedelta | None = None
    error: str | None = None
    reason: str | None = None
    traceback: TracebackRecord | None = None
    max_attempts: int | None = None
    """The entrypoint's cap, for a row that has none of its own. None: no cap."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a sweep did about leases whose worker is gone."""

    recovered: tuple[JobId, ...] = ()
    retired: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldFilter:
    """Which held jobs are meant; what is not given does not restrict."""

    entrypoint: str | None = None
    error: str | None = None
    """A part of the last error, whatever its case."""
    since: timedelta | None = None
    """Held within this time."""
    older_than: timedelta | None = None
    """Held for longer than this."""


class Requeued(enum.StrEnum):
    """What became of one id of a requeue."""

    REQUEUED = "requeued"
    KEY_TAKEN = "key_taken"
    NOT_HELD = "not_held"
    NOT_FOUND = "not_found"


class LogEntry(NamedTuple):
    """A row of the log: the end of a lease, or what an operator did."""

    id: int
    job_id: JobId
    status: Status
    entrypoint: str
    priority: int
    attempt: int
    recoveries: int
    claimed_by: str | None
    claimed_at: datetime | None
    actor: str | None
    reason: str | None
    traceback: dict[str, Any] | None
    created: datetime


@dataclass(frozen=True, slots=True)
class QueueSize:
    """How many jobs of one kind are in the queue table."""

    entrypoint: str
    priority: int
    status: Status
    count: int


@dataclass(frozen=True, slots=True)
class TableDepth:
    """How full a table queue is."""

    waiting: int
    claimed: int
    oldest: timedelta | None
    """How long the first due row has waited."""


@dataclass(frozen=True, slots=True)
class Statistic:
    """How many log rows of one kind fell into one bucket of time."""

    bucket: datetime
    entrypoint: str
    priority: int
    status: Status
    count: int
    busy: timedelta
    """Time between claim and outcome, summed."""


class WorkerInfo(NamedTuple):
    """A worker as it last reported itself."""

    id: str
    host: str
    pid: int
    version: str
    entrypoints: list[str]
    concurrency: int
    running: int
    state: str
    started_at: datetime
    heartbeat: datetime


class Schedule(NamedTuple):
    """A recurring job. `slot` is the tick a handler is run for; None in listings."""

    id: int
    name: str
    expression: str
    timezone: str
    misfire: str
    overlap: str
    paused: bool
    next_run: datetime
    last_run: datetime | None
    created: datetime
    updated: datetime
    slot: datetime | None = None

    @property
    def entrypoint(self) -> str:
        """The entrypoint of the jobs its ticks become: its name."""
        return self.name


def tick_job(name: str, slot: datetime) -> NewJob:
    """The job that a tick of a schedule becomes: its dedupe key is the schedule and the tick."""
    instant = slot.astimezone(UTC).isoformat()
    return NewJob(
        entrypoint=name,
        dedupe_key=f"schedule:{name}:{instant}",
        headers={"schedule": name, "slot": instant},
    )


class Cancellation:
    """Tells a running handler that it should stop. Safe to read from any thread."""

    __slots__ = ("reason", "runs_on")

    def __init__(self) -> None:
        self.reason: str | None = None
        self.runs_on: Future[Any] | None = None
        """Of a handler that could not be stopped: done when its thread has ended."""

    @property
    def cancel_called(self) -> bool:
        return self.reason is not None

    def cancel(self, reason: str) -> None:
        self.reason = self.reason or reason


@dataclass(slots=True)
class Context:
    """What a handler with `accepts_context=True` gets besides its job."""

    job: Job
    resources: Mapping[Any, Any]
    cancellation: Cancellation = field(default_factory=Cancellation)

    @property
    def lease_lost(self) -> bool:
        """The claim is gone: whatever the handler does now will not be recorded."""
        return self.cancellation.reason in (LEASE_LOST, UNTRUSTED)


LEASE_LOST = "lease lost"
UNTRUSTED = "lease could not be renewed"
CANCELED = "canceled"
SHUTDOWN = "shutdown"
TIMED_OUT = "timed out"
"""Why a running handler was told to stop."""

NOT_STARTED = "not started"
"""Why a job is handed back whose handler was never called."""
