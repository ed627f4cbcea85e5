"""Every error Holdfast raises, in one tree.

HoldfastError
├── InvalidInput (ValueError)      an argument that can never work
│   └── ScheduleError              a cron expression or time zone
├── DuplicateJobError              the dedupe key belongs to an active job
├── JobNotFound                    no job and no log row with that id
├── BreakerNotFound                no worker has named that circuit breaker
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
├── LeaseLost                      the claim belongs to somebody else by now
├── JobTimeout                     a handler ran longer than its timeout
├── HandlerExit                    a handler tried to end the process
└── RetryException
    └── RetryRequested             raised by a handler to be run again later
"""

from __future__ import annotations

from datetime import timedelta


class HoldfastError(Exception):
    """The root of the tree: `except HoldfastError` catches all of them."""


class InvalidInput(HoldfastError, ValueError):
    """An argument that can never work; nothing was changed."""


class ScheduleError(InvalidInput):
    """A cron expression, time zone or policy that cannot be honoured."""


class DuplicateJobError(HoldfastError):
    """A queued or picked job already holds this dedupe key."""

    def __init__(self, dedupe_key: str) -> None:
        self.dedupe_key = dedupe_key
        super().__init__(
            f"dedupe_key {dedupe_key!r} belongs to a job that is still queued or running; "
            f'wait for it to end, or pass on_conflict="skip"'
        )


class JobNotFound(HoldfastError):
    """Neither the queue nor the log knows the id."""

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} is neither in the queue nor in the log; check the id")


class BreakerNotFound(HoldfastError):
    """No worker has named the circuit breaker, and nobody holds it open."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"there is no circuit breaker {name!r}; `holdfast breaker list` names those there are"
        )


class SchemaError(HoldfastError):
    """The database's tables are not what this version of Holdfast needs."""


class SchemaMissing(SchemaError):
    """Holdfast is not installed in this database (or not under this prefix)."""


class SchemaTooOld(SchemaError):
    """The database needs `holdfast upgrade`."""


class SchemaTooNew(SchemaError):
    """The database was upgraded by a newer Holdfast than this one."""


class MissingDependency(HoldfastError):
    """An optional package is needed for what was asked."""


class DatabaseError(HoldfastError):
    """The server refused a statement."""

    def __init__(self, message: str, *, sqlstate: str | None = None) -> None:
        self.sqlstate = sqlstate
        super().__init__(message)

    @property
    def locked(self) -> bool:
        """Somebody else had what it needs, for longer than it was to wait."""
        return self.sqlstate == "55P03"


class PrivilegeMissing(DatabaseError):
    """The user of the connection may not do that; nothing was changed."""

    def __init__(self, denied: str, *, statement: str = "", role: str = "") -> None:
        self.denied = denied
        """In the server's words."""
        self.role = role
        """Whose privileges it takes, as `holdfast sql grants` names them; empty: the owner's."""
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
        """The name of the exception. Its message stays out: it may quote the value."""
        self.column = column
        where = "the reply" if column is None else f"column {column!r}"
        super().__init__(f"{where} holds a value that Python cannot read ({kind})")


class ConnectionFailed(DatabaseError):
    """No connection could be opened; nothing was sent."""


class ConnectionLost(DatabaseError):
    """The connection broke under a statement, whose outcome is therefore unknown."""


class DeadlineExceeded(ConnectionLost):
    """The server did not answer in time and the socket was dropped."""


class OutcomeUnknown(ConnectionLost):
    """The connection was lost while enqueuing: the jobs may or may not be there."""


class LeaseLost(HoldfastError):
    """The lease ended while the handler ran; whatever it did is not recorded."""


class JobTimeout(HoldfastError):
    """A handler ran longer than its entrypoint's timeout."""


class InvalidRow(HoldfastError):
    """A row of a table queue that its handler's model refuses; it is held, not tried again."""


class HandlerExit(HoldfastError):
    """A handler raised SystemExit, KeyboardInterrupt or another BaseException."""


class RetryException(HoldfastError):
    """The root of what a handler raises to be run again."""


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
