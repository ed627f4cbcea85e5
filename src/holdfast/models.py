"""The values that travel: a job's way is NewJob -> Job (claimed) -> Outcome -> Change."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Generator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NewType, Protocol, Self

from holdfast.errors import InvalidInput
from holdfast.errors import TracebackRecord as TracebackRecord
from holdfast.fingerprint import fingerprint
from holdfast.histogram import percentile

if TYPE_CHECKING:
    from concurrent.futures import Future
    from uuid import UUID

    from holdfast.histogram import Histogram
    from holdfast.lifecycle import Status

JobId = NewType("JobId", int)
Headers = Mapping[str, Any]
OnConflict = Literal["raise", "skip"]
"""What a store does about a taken dedupe key."""
EnqueueConflict = Literal["raise", "skip", "update_priority"]
"""The choices of a caller. Raising a priority takes a statement of its own."""
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


class LargePayload(bytes):
    """Stands for a payload that was too large for the reply to a claim, until it is fetched."""

    size: int

    @classmethod
    def of(cls, size: int) -> LargePayload:
        new = cls()
        new.size = size
        return new


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
        """The user's table that the row belongs to; `OWN` for Holdfast's own."""
        return self.entrypoint if self.row is not None else OWN


OWN = ""
"""The name of Holdfast's own table among the tables that a worker claims from."""

SOON = timedelta(minutes=1)
"""Work that will be due within this is announced like work that is due: whoever sleeps learns when
to wake."""


@dataclass(slots=True, eq=False)
class Capacity:
    """The number of jobs that a worker can still take. Each statement of a claim reduces it."""

    left: int


@dataclass(frozen=True, slots=True)
class ClaimRule:
    """An entrypoint a worker can run, and the rules it claims under."""

    entrypoint: str
    lease: timedelta
    max_attempts: int | None = 25
    max_recoveries: int = 3
    concurrency_limit: int = 0
    capacity: Capacity | None = None
    """Free places for jobs of this entrypoint. None means unlimited."""

    def fit(self, count: int) -> int:
        """Return how many of `count` jobs fit into the capacity."""
        return count if self.capacity is None else min(count, self.capacity.left)

    def took(self, count: int) -> None:
        """Record that `count` jobs were claimed."""
        if self.capacity is not None:
            self.capacity.left -= count


class LeaseKey(NamedTuple):
    """The identity of a lease. Every later write about the claim names it."""

    id: JobId
    token: UUID


@dataclass(frozen=True, slots=True)
class StoredResult:
    """The return value of a task, kept beside the log."""

    value: str | None
    """JSON; None where it could not be stored."""
    keep: timedelta = timedelta(0)
    """For how long it is to be kept."""
    error: str | None = None
    """The reason why there is no value."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a job, as its handler last reported it."""

    fraction: float
    """From 0 to 1."""
    message: str | None = None
    updated: datetime | None = None
    """Set by the store."""


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned."""

    result: StoredResult | None = None
    """Only tasks that store their results have one."""


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
class Held:
    """The handler raised; the job is held for a person."""

    error: str
    traceback: TracebackRecord | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """Released: queued again, nothing counted."""

    reason: str


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Another worker has the lease, or the job was cancelled. Nothing is written."""

    reason: str


Outcome = Succeeded | Retried | Failed | Held | Released | Abandoned


class Change(NamedTuple):
    """One row's part of a set-based transition made by the holder of a lease."""

    key: LeaseKey
    delay: timedelta | None = None
    error: str | None = None
    reason: str | None = None
    traceback: TracebackRecord | None = None
    max_attempts: int | None = None
    """The entrypoint's cap, for a row that has none of its own. None means no cap."""
    result: StoredResult | None = None
    """Written in the statement that ends the lease. The changes of one call all have one, or none
    has."""

    @property
    def fingerprint(self) -> str | None:
        return error_fingerprint(self.error, self.traceback)


def error_fingerprint(error: str | None, traceback: TracebackRecord | None) -> str | None:
    """Return the mark of an error as it goes to the log; None where there is none."""
    if traceback is None:
        return None if error is None else fingerprint(error)
    message = f"{traceback.exception_type}: {traceback.exception_message}"
    return fingerprint(message, traceback.traceback)


class ProgressNote(NamedTuple):
    """The progress that the holder of a lease reports."""

    key: LeaseKey
    progress: Progress


@dataclass(frozen=True, slots=True)
class Recovery:
    """The jobs that a sweep recovered or retired."""

    recovered: tuple[JobId, ...] = ()
    retired: tuple[JobId, ...] = ()
    excused: tuple[JobId, ...] = ()
    """Those of `recovered` whose leases expired in an outage of the database. No recovery was
    counted for them."""
    recovered_by_queue: Mapping[str, int] = field(default_factory=dict, compare=False)
    """The number of recovered jobs by entrypoint."""
    retired_by_queue: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class RecoveredWaiting:
    """Jobs that a worker died with and that wait to be claimed again."""

    recovered: timedelta | None = None
    """Time until the first of those that run beside others is due. None means there are none."""
    suspects: timedelta | None = None
    """The same for suspects: jobs that one more death would retire."""
    suspects_leased: int = 0
    """Suspects that some worker runs now."""
    workers: int = 0
    """Workers that are alive. 0 means unknown."""


UPKEEP = "upkeep"
"""A duty that one worker does for all, such as the upkeep."""


@dataclass(frozen=True, slots=True)
class Duty:
    """Whether a worker has a duty, as the store last said."""

    token: UUID
    """The token that the statements of the holder name."""
    held: bool
    workers: int = 0
    """Workers that are alive."""
    now: datetime | None = None
    """The clock of the store when it answered."""
    sent: float = 0.0
    """When it was asked, by the worker's own clock."""


@dataclass(frozen=True, slots=True)
class DueJobs:
    """Jobs that are due although workers sleep."""

    overdue: Sequence[str] = ()
    """Entrypoints with jobs that no worker has claimed."""
    recovered: bool = False
    """Whether a job is due that a worker died with."""
    next_due: timedelta | None = None


@dataclass(frozen=True, slots=True)
class HeldFilter:
    """A filter of held jobs. A field that is None does not restrict."""

    entrypoint: str | None = None
    error: str | None = None
    """A part of the last error, whatever its case."""
    since: timedelta | None = None
    """Held within this time."""
    older_than: timedelta | None = None
    """Held for longer than this."""


class Requeued(enum.StrEnum):
    """The outcome of one id of a requeue."""

    REQUEUED = "requeued"
    KEY_TAKEN = "key_taken"
    NOT_HELD = "not_held"
    NOT_FOUND = "not_found"


class Moved(enum.StrEnum):
    """The outcome of one id of a move."""

    MOVED = "moved"
    LEASED = "leased"
    """A worker has a lease on it that is not stale."""
    KEY_TAKEN = "key_taken"
    NOT_FOUND = "not_found"


class LogEntry(NamedTuple):
    """A row of the log: the end of a lease, or an act of an operator."""

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
    enqueued_at: datetime | None = None
    due_at: datetime | None = None
    """When the job could be claimed; `claimed_at - due_at` is how long it waited. None, like the
    fields beside it, in rows that a previous version wrote."""
    lease: timedelta | None = None
    """How long a worker's silence was allowed to last. None where no lease ended."""
    fingerprint: str | None = None
    """The same for errors of one kind: of the exception, its message without the values in it, and
    the function that raised. None where no error was given."""


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
    waited: Histogram = ()
    """Waiting times: from when a job was due until its claim."""
    ran: Histogram = ()
    """Running times: from claim to outcome."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the jobs of an entrypoint waited and ran, of all leases that ended in a while."""

    entrypoint: str
    waited: Histogram
    ran: Histogram

    def waiting(self, fraction: float) -> timedelta | None:
        """Return the waiting time that this fraction stayed below; None without any lease."""
        return percentile(self.waited, fraction)

    def running(self, fraction: float) -> timedelta | None:
        """Return the running time that this fraction stayed below; None without any lease."""
        return percentile(self.ran, fraction)


_DEFAULT_TIMEOUT = timedelta(seconds=30)
"""For a worker whose report does not say what its timeout is."""


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
    heartbeat_timeout: timedelta | None = None
    """Its setting: other workers take its jobs when it has been silent for this long. None for a
    worker of a version that does not report it."""
    full_entrypoints: Sequence[str] = ()
    """Those whose own slots in this worker, such as its threads, are all in use."""
    breaker_names: Sequence[str] = ()
    """The circuit breaker of each entrypoint, in their order; empty where one has none."""

    def breaker_of(self, entrypoint: str) -> str | None:
        """Return the circuit breaker that its jobs of this entrypoint wait behind."""
        found = dict(zip(self.entrypoints, self.breaker_names, strict=False))
        return found.get(entrypoint) or None

    def alive_at(self, now: datetime) -> bool:
        """Return whether it has reported within its own timeout."""
        return now - self.heartbeat <= (self.heartbeat_timeout or _DEFAULT_TIMEOUT)


class Pause(NamedTuple):
    """Jobs of this name are not claimed. An empty name means those of every name."""

    name: str
    until: datetime | None
    """None means until a person resumes it."""
    actor: str | None
    reason: str
    created: datetime

    def covers(self, entrypoint: str) -> bool:
        return self.name in ("", entrypoint)


class Act(NamedTuple):
    """An act of a person that concerns no single job."""

    id: int
    created: datetime
    act: str
    subject: str
    """An entrypoint, a table queue, a schedule or a breaker; empty for everything."""
    actor: str | None
    reason: str | None


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
        """The entrypoint of the jobs of its ticks, which is its name."""
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
    """Tells a running handler that it should stop. Safe to read from any thread.

    `with context.cancellation:` is a scope: when the job is stopped, its body ends at the next
    await, and the handler goes on behind it, to clean up. What it returns then is no success.
    """

    __slots__ = ("cancelled_caught", "reason", "runs_on")

    def __init__(self) -> None:
        self.cancelled_caught = False
        """The body of a scope was ended before its time."""
        self.reason: str | None = None
        self.runs_on: Future[Any] | None = None
        """The run of a handler that could not be stopped: done when its thread has ended."""

    @property
    def cancel_called(self) -> bool:
        return self.reason is not None

    def cancel(self, reason: str) -> None:
        self.reason = self.reason or reason

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        if not self.cancel_called or kind is None or not issubclass(kind, asyncio.CancelledError):
            return False
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
        self.cancelled_caught = True
        return True


class HandlerTransaction(Protocol):
    """A handler's own transaction, as `async with`, or in a thread as `with`."""

    async def __aenter__(self) -> Any: ...
    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...
    async def commit(self, result: StoredResult | None) -> None: ...
    def commit_sync(self, result: StoredResult | None) -> None: ...
    async def discard(self) -> None: ...


class HandlerServices(Protocol):
    """A worker's services for the handlers that it runs. One object serves them all."""

    def note(self, lease: Any, fraction: float, message: str | None) -> None: ...
    def begin(
        self, context: Context, target: object, *, keep_on_retry: bool
    ) -> HandlerTransaction: ...


class _Done:
    """An awaitable that is done."""

    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield


_DONE = _Done()


@dataclass(slots=True)
class Context:
    """The second argument of a handler with `accepts_context=True`."""

    job: Job
    resources: MutableMapping[Any, Any]
    cancellation: Cancellation = field(default_factory=Cancellation)
    services: HandlerServices | None = field(default=None, repr=False)
    """Where progress and transactions go. None where no worker runs the handler."""
    lease: Any = field(default=None, repr=False)
    """The worker's record of the job. The services ask for it."""
    result: StoredResult | None = field(default=None, init=False, repr=False)
    """Set by the executor of a task that stores its results."""
    stores_result: bool = field(default=False, init=False, repr=False)
    """Set beforehand by that executor: a handler's transaction then waits for the result."""
    transaction_begun: bool = field(default=False, init=False, repr=False)
    """The one transaction that a run may have was begun."""
    ended: bool = field(default=False, init=False, repr=False)
    """The run is over."""
    uncommitted: HandlerTransaction | None = field(default=None, init=False, repr=False)
    """A transaction whose block was left, and which is committed with the result."""
    settled: Outcome | None = field(default=None, init=False, repr=False)
    """The outcome of the handler's transaction."""

    def transaction(
        self, target: object = None, *, keep_on_retry: bool = False
    ) -> HandlerTransaction:
        """Write in one transaction with the end of the job: `async with ctx.transaction() as tx:`.

        It gives a connection of asyncpg or psycopg, as the worker uses. With an AsyncEngine or an
        async_sessionmaker of SQLAlchemy it gives a connection or a session of that; a handler in a
        thread writes `with ctx.transaction(engine_or_sessionmaker)`.

        Leaving the block commits what was written and completes the job. A task that stores its
        result commits when it returns. If the lease was lost, everything is rolled back. An
        exception rolls back, and the job fails or is retried as always; with `keep_on_retry` a
        RetryRequested commits what was written together with the retry.
        """
        if self.services is None:
            raise InvalidInput(
                "ctx.transaction() works in a handler that a worker runs; in a test run the job "
                "with holdfast.testing"
            )
        return self.services.begin(self, target, keep_on_retry=keep_on_retry)

    def progress(self, fraction: float, message: str | None = None) -> Awaitable[None]:
        """Say how far the job is, from 0 to 1. The last word is stored a few times a second.

        `await` it in an `async def`; in a plain function the call alone does it.
        """
        if not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise InvalidInput(f"progress must be a number from 0 to 1, got {fraction!r}")
        if message is not None and not isinstance(message, str):
            raise InvalidInput(f"the message of a progress must be a str, got {message!r}")
        if self.services is not None:
            self.services.note(self.lease, float(fraction), message)
        return _DONE

    @property
    def lease_lost(self) -> bool:
        """The claim is gone: whatever the handler does now will not be recorded."""
        return self.cancellation.reason in (LEASE_LOST, UNTRUSTED)


class Executor(Protocol):
    """Runs a handler. It raises what the handler raises, and never sees a store.

    An executor that wraps another has the same properties, and answers for the one inside.
    """

    @property
    def capacity(self) -> int:
        """How many jobs run at once in this process, and are claimed for it. 0 means unlimited."""
        ...

    @property
    def limits_time(self) -> bool:
        """Whether it ends a handler at the entrypoint's timeout by itself."""
        ...

    @property
    def written_retries(self) -> int | None:
        """The number of retries after which it gives up, if one was given."""
        ...

    async def execute(self, job: Job, context: Context) -> None: ...


LEASE_LOST = "lease lost"
UNTRUSTED = "lease could not be renewed"
CANCELED = "canceled"
SHUTDOWN = "shutdown"
TIMED_OUT = "timed out"
"""The reason why a running handler was asked to stop."""

NOT_STARTED = "not started"
"""The reason in the log of a job that is released before its handler was called."""
