"""Holdfast: a PostgreSQL job queue with fenced leases that you can read like a ledger."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from holdfast.app import Holdfast, sync_queries
from holdfast.breaker import Breaker, BreakerPolicy, BreakerState
from holdfast.client.completion import CompletionWatcher
from holdfast.client.groups import TaskGroup
from holdfast.client.handles import JobHandle
from holdfast.client.queries import Queries, SyncQueries
from holdfast.client.retries import Retry
from holdfast.client.tasks import BoundTask, Task
from holdfast.errors import (
    BreakerNotFound,
    CarrierError,
    ConnectionFailed,
    ConnectionLost,
    DatabaseError,
    DeadlineExceeded,
    DuplicateJobError,
    HandlerExit,
    HoldfastError,
    InvalidArguments,
    InvalidInput,
    InvalidPayload,
    InvalidRow,
    InvalidTask,
    JobCanceled,
    JobDeleted,
    JobFailed,
    JobHeld,
    JobNotFound,
    JobTimeout,
    LeaseLost,
    MissingDependency,
    NotPaused,
    NoTransaction,
    OutcomeUnknown,
    PrivilegeMissing,
    ResultError,
    ResultMissing,
    RetryException,
    RetryRequested,
    ScheduleError,
    ScheduleNotFound,
    SchemaError,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    WorkerAlive,
    WrongEventLoop,
)
from holdfast.executors import (
    AbstractEntrypointExecutor,
    DatabaseRetryEntrypointExecutor,
    EntrypointExecutor,
    EntrypointExecutorParameters,
)
from holdfast.explanation import Explanation
from holdfast.lifecycle import Status
from holdfast.models import (
    Context,
    HeldFilter,
    Job,
    JobId,
    LogEntry,
    Moved,
    NewJob,
    Pause,
    Progress,
    Requeued,
    Schedule,
    Timing,
    TracebackRecord,
    WorkerInfo,
)
from holdfast.redact import Redacted
from holdfast.scheduler.manager import SchedulerManager
from holdfast.settings import Retention, WorkerSettings
from holdfast.stores.memory import InMemoryDriver
from holdfast.table import TableQueue, exponential, linear
from holdfast.worker.claim import QueueExecutionMode
from holdfast.worker.manager import QueueManager

__all__ = [
    "AbstractEntrypointExecutor",
    "AsyncpgDriver",
    "AsyncpgPoolDriver",
    "BoundTask",
    "Breaker",
    "BreakerNotFound",
    "BreakerPolicy",
    "BreakerState",
    "CarrierError",
    "CompletionWatcher",
    "ConnectionFailed",
    "ConnectionLost",
    "Context",
    "DatabaseError",
    "DatabaseRetryEntrypointExecutor",
    "DeadlineExceeded",
    "DuplicateJobError",
    "EntrypointExecutor",
    "EntrypointExecutorParameters",
    "Explanation",
    "HandlerExit",
    "HeldFilter",
    "Holdfast",
    "HoldfastError",
    "InMemoryDriver",
    "InvalidArguments",
    "InvalidInput",
    "InvalidPayload",
    "InvalidRow",
    "InvalidTask",
    "Job",
    "JobCanceled",
    "JobDeleted",
    "JobFailed",
    "JobHandle",
    "JobHeld",
    "JobId",
    "JobNotFound",
    "JobTimeout",
    "LeaseLost",
    "LogEntry",
    "MissingDependency",
    "Moved",
    "NewJob",
    "NoTransaction",
    "NotPaused",
    "OutcomeUnknown",
    "Pause",
    "PrivilegeMissing",
    "Progress",
    "PsycopgDriver",
    "Queries",
    "QueueExecutionMode",
    "QueueManager",
    "Redacted",
    "Requeued",
    "ResultError",
    "ResultMissing",
    "Retention",
    "Retry",
    "RetryException",
    "RetryRequested",
    "Schedule",
    "ScheduleError",
    "ScheduleNotFound",
    "SchedulerManager",
    "SchemaError",
    "SchemaMissing",
    "SchemaTooNew",
    "SchemaTooOld",
    "Status",
    "SyncPsycopgDriver",
    "SyncQueries",
    "TableQueue",
    "Task",
    "TaskGroup",
    "Timing",
    "TracebackRecord",
    "WorkerAlive",
    "WorkerInfo",
    "WorkerSettings",
    "WrongEventLoop",
    "exponential",
    "linear",
    "sync_queries",
]

_DRIVERS = {
    "AsyncpgDriver": "asyncpg",
    "AsyncpgPoolDriver": "asyncpg",
    "PsycopgDriver": "psycopg",
    "SyncPsycopgDriver": "psycopg",
}
for _name, _library in _DRIVERS.items():
    # `from holdfast import *` has to work where only one client library is installed.
    if find_spec(_library) is None:
        __all__.remove(_name)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("holdfast")
    # On demand, because no program needs both client libraries.
    if name in _DRIVERS:
        from holdfast import db

        return getattr(db, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
