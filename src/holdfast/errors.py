"""Every error Holdfast raises, in one tree.

HoldfastError
├── InvalidInput (ValueError)      an argument that can never work
│   ├── ScheduleError              a cron expression or time zone
│   │   └── ScheduleNotFound       no schedule has that name
│   ├── InvalidTask                a task that cannot be registered as it is
│   ├── InvalidArguments           they do not fit the task that is enqueued
│   └── CarrierError               what .on() was given cannot be joined
│       └── NoTransaction          it is in no transaction
├── InvalidPayload                 a stored payload that does not fit its task
├── ResultError                    there is no result to be had
│   ├── JobFailed
│   ├── JobHeld
│   ├── JobCanceled
│   ├── JobDeleted
│   └── ResultMissing              not stored, too large, expired, or the job is unknown
├── WrongEventLoop                 a queue that is in use by another event loop
├── DuplicateJobError              the dedupe key belongs to an active job
├── LeaseLost                      a handler's transaction was rolled back: the job is not its own
├── JobNotFound                    no job and no log row with that id
├── BreakerNotFound                no worker has named that circuit breaker
├── NotPaused                      what was to be resumed is not paused
├── WorkerAlive                    its jobs are not released: it still reports
├── SchemaError                    the database is not what this version needs
│   ├── SchemaMissing
│   ├── SchemaTooOld
│   └── SchemaTooNew
├── MissingDependency              an optional package is not installed
├── DatabaseError                  the server refused a statement
│   ├── PrivilegeMissing           this user may not do that
│   ├── UnreadableReply            a value that Python has no counterpart for
│   ├── ConnectionFailed           no connection could be opened
│   └── ConnectionLost             it broke under us: the outcome is unknown
│       ├── DeadlineExceeded       no answer in time, the socket was dropped
│       └── OutcomeUnknown         an enqueue that may or may not have happened
├── JobTimeout (TimeoutError)      a handler ran longer than its timeout
├── HandlerExit                    a handler tried to end the process
└── RetryException
    └── RetryRequested             raised by a handler to be run again later
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class TracebackRecord:
    """An error as it is stored in the log's `traceback` column."""

    exception_type: str
    exception_message: str
    traceback: str
    additional_context: Mapping[str, Any] | None = None
    job_id: int | None = None
    timestamp: datetime | None = None


class HoldfastError(Exception):
    """The root of the tree: `except HoldfastError` catches all of them."""


class InvalidInput(HoldfastError, ValueError):
    """An argument that can never work; nothing was changed."""


class ScheduleError(InvalidInput):
    """A cron expression, time zone or policy that cannot be honoured."""


class ScheduleNotFound(ScheduleError):
    """There is no schedule of that name."""


class InvalidTask(InvalidInput):
    """A task that cannot be registered: its name, its signature or one of its options."""


class InvalidArguments(InvalidInput):
    """Arguments that do not fit the task they were to be enqueued for; nothing was enqueued."""


class InvalidPayload(HoldfastError):
    """A stored payload that does not fit its task's signature; the job is held, not tried again."""


class WrongEventLoop(HoldfastError):
    """The queue is in use by an event loop that still runs, and this is another one."""


class ResultError(HoldfastError):
    """The job has no result."""

    def __init__(self, job_id: int, message: str, record: TracebackRecord | None = None) -> None:
        self.job_id = job_id
        self.record = record
        """The error with its traceback. None where none was recorded."""
        super().__init__(message)


class JobFailed(ResultError):
    """The handler raised, and the job has left the queue."""


class JobHeld(ResultError):
    """The handler raised, and the job is held for a person. Requeue it and wait again."""


class JobCanceled(ResultError):
    """The job was canceled."""


class JobDeleted(ResultError):
    """The job was deleted by a person before it ran."""


class ResultMissing(ResultError):
    """The task stores no results, this one was too large or has expired, or the id is unknown."""


class CarrierError(InvalidInput):
    """`.on()` was given an object that cannot be joined; nothing was sent."""


class NoTransaction(CarrierError):
    """The connection is in no transaction, so nothing would tie the job to the caller's data."""

    def __init__(self, what: str, begin_with: str) -> None:
        super().__init__(
            f"{what} is in no transaction, so what is done on it would not be rolled back with "
            f"your data; begin one ({begin_with}), or pass .on(…, autocommit=True) to commit each "
            "call by itself"
        )


class DuplicateJobError(HoldfastError):
    """A queued or picked job already holds this dedupe key."""

    def __init__(self, dedupe_key: str) -> None:
        self.dedupe_key = dedupe_key
        super().__init__(
            f"dedupe_key {dedupe_key!r} belongs to a job that is still queued or running; "
            f'wait for it to end, or pass on_conflict="skip"'
        )


class LeaseLost(HoldfastError):
    """The lease is over, so what the handler wrote in ctx.transaction() was rolled back."""

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        super().__init__(
            f"the lease on job {job_id} is over, so what its handler wrote was rolled back; let "
            "the exception pass: whoever has the job now will run it"
        )


class JobNotFound(HoldfastError):
    """Neither the queue nor the log knows the id."""

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} is neither in the queue nor in the log; check the id")


class BreakerNotFound(HoldfastError):
    """No worker has named the circuit breaker, and no operator holds it open."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"there is no circuit breaker {name!r}; `holdfast breaker list` names those there are"
        )


class NotPaused(HoldfastError):
    """The entrypoint or table queue is not paused by this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        what = repr(name) if name else "everything"
        super().__init__(f"{what} is not paused; `holdfast pauses` lists what is")


class WorkerAlive(HoldfastError):
    """The worker has reported within its heartbeat_timeout, so its jobs are not released."""

    def __init__(self, worker: str, silence: timedelta, patience: timedelta) -> None:
        self.worker = worker
        super().__init__(
            f"worker {worker!r} reported {silence.total_seconds():.1f} s ago, and counts as dead "
            f"after {patience.total_seconds():g} s; stop it first, or pass force=True (--force)"
        )


class SchemaError(HoldfastError):
    """The database's tables are not what this version of Holdfast needs."""

    command: ClassVar[str] = "holdfast upgrade"
    """The command that makes them fit."""


class SchemaMissing(SchemaError):
    """Holdfast is not installed in this database (or not under this prefix)."""

    command = "holdfast install"


class SchemaTooOld(SchemaError):
    """The database needs `holdfast upgrade`."""


class SchemaTooNew(SchemaError):
    """The database was upgraded by a newer Holdfast than this one."""

    command = "pip install --upgrade holdfast"


class MissingDependency(HoldfastError):
    """An optional package is not installed."""


class DatabaseError(HoldfastError):
    """The server refused a statement."""

    def __init__(self, message: str, *, sqlstate: str | None = None) -> None:
        self.sqlstate = sqlstate
        super().__init__(message)

    @property
    def full(self) -> bool:
        """Whether the server has no free connection for this role."""
        return self.sqlstate == "53300"

    @property
    def undefined(self) -> bool:
        """Whether a table, column, type or function of the statement does not exist."""
        return self.sqlstate in ("3F000", "42P01", "42703", "42704", "42883")

    @property
    def damaged(self) -> bool:
        """Whether the server could not read what it has stored."""
        return (self.sqlstate or "").startswith("XX")

    @property
    def locked(self) -> bool:
        """Another session held a lock or a resource for longer than the statement was to wait."""
        return self.sqlstate == "55P03"


class PrivilegeMissing(DatabaseError):
    """The user of the connection may not do that; nothing was changed."""

    def __init__(self, denied: str, *, statement: str = "", role: str = "") -> None:
        self.denied = denied
        """In the server's words."""
        self.role = role
        """The role whose privileges it takes, by its name in `holdfast sql grants`. Empty means the
        owner."""
        if role:
            way = f"it takes the privileges of the {role}: have the owner of the tables"
        else:
            way = "do it as the owner of the tables, or have the owner"
        super().__init__(
            f"{statement or 'a statement'} was refused: {denied}; {way} run `holdfast sql grants` "
            f"and give this user a role of it",
            sqlstate="42501",
        )


class UnreadableReply(DatabaseError):
    """A value has no counterpart in Python. The statement has happened, and the session goes on."""

    def __init__(self, kind: str, column: str | None = None) -> None:
        self.kind = kind
        """The name of the exception. Its message is left out, because it may quote the value."""
        self.column = column
        where = "the reply" if column is None else f"column {column!r}"
        super().__init__(f"{where} holds a value that Python cannot read ({kind})")


class ConnectionFailed(DatabaseError):
    """No connection could be opened; nothing was sent."""

    def __init__(
        self,
        message: str,
        *,
        sqlstate: str | None = None,
        no_descriptor: bool = False,
        closed: bool = False,
    ) -> None:
        self.no_descriptor = no_descriptor
        """This process, or the machine, has no file descriptor left."""
        self.closed = closed
        """The queue was left, so that no later try succeeds either."""
        super().__init__(message, sqlstate=sqlstate)


class ConnectionLost(DatabaseError):
    """The connection broke under a statement, whose outcome is therefore unknown."""


class DeadlineExceeded(ConnectionLost):
    """The server did not answer in time, and the statement was cancelled."""


class OutcomeUnknown(ConnectionLost):
    """The connection was lost while enqueuing: the jobs may or may not be there."""


class JobTimeout(HoldfastError, TimeoutError):
    """A handler ran longer than its entrypoint's timeout."""


class InvalidRow(HoldfastError):
    """A row of a table queue that its handler's model refuses; it is held, not tried again."""


class HandlerExit(HoldfastError):
    """A handler raised SystemExit, KeyboardInterrupt or another BaseException."""


class RetryException(HoldfastError):
    """The root of the exceptions that a handler raises to be run again."""


class RetryRequested(RetryException):
    """Raise it from a handler: the same job is queued again after `delay`."""

    def __init__(self, delay: timedelta = timedelta(0), reason: str | None = None) -> None:
        if not isinstance(delay, timedelta):
            raise InvalidInput(f"RetryRequested delay must be a timedelta, got {delay!r}")
        if delay < timedelta(0):
            raise InvalidInput(f"RetryRequested delay must not be negative, got {delay}")
        self.delay = delay
        self.reason = reason
        super().__init__(reason or "retry requested")
