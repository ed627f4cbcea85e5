"""Holdfast: a PostgreSQL job queue with fenced leases that you can read like a ledger."""

from __future__ import annotations

from typing import Any

from holdfast.app import Holdfast, sync_queries
from holdfast.breaker import Breaker, BreakerPolicy, BreakerState
from holdfast.errors import (
    BreakerNotFound,
    ConnectionFailed,
    ConnectionLost,
    DatabaseError,
    DeadlineExceeded,
    DuplicateJobError,
    HandlerExit,
    HoldfastError,
    InvalidInput,
    InvalidRow,
    JobNotFound,
    JobTimeout,
    LeaseLost,
    MissingDependency,
    OutcomeUnknown,
    PrivilegeMissing,
    RetryException,
    RetryRequested,
    ScheduleError,
    SchemaError,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
)
from holdfast.executors import (
    AbstractEntrypointExecutor,
    DatabaseRetryEntrypointExecutor,
    EntrypointExecutor,
    EntrypointExecutorParameters,
)
from holdfast.lifecycle import Status
from holdfast.models import (
    Context,
    HeldFilter,
    Job,
    JobId,
    LogEntry,
    NewJob,
    Requeued,
    Schedule,
    TracebackRecord,
    WorkerInfo,
)
from holdfast.queries import Queries, SyncQueries
from holdfast.scheduler.manager import SchedulerManager
from holdfast.settings import WorkerSettings
from holdfast.stores.memory import InMemoryDriver
from holdfast.table import TableQueue, exponential, linear
from holdfast.worker.claim import QueueExecutionMode
from holdfast.worker.worker import QueueManager

__all__ = [
    "AbstractEntrypointExecutor",
    "AsyncpgDriver",
    "AsyncpgPoolDriver",
    "Breaker",
    "BreakerNotFound",
    "BreakerPolicy",
    "BreakerState",
    "ConnectionFailed",
    "ConnectionLost",
    "Context",
    "DatabaseError",
    "DatabaseRetryEntrypointExecutor",
    "DeadlineExceeded",
    "DuplicateJobError",
    "EntrypointExecutor",
    "EntrypointExecutorParameters",
    "HandlerExit",
    "HeldFilter",
    "Holdfast",
    "HoldfastError",
    "InMemoryDriver",
    "InvalidInput",
    "InvalidRow",
    "Job",
    "JobId",
    "JobNotFound",
    "JobTimeout",
    "LeaseLost",
    "LogEntry",
    "MissingDependency",
    "NewJob",
    "OutcomeUnknown",
    "PrivilegeMissing",
    "PsycopgDriver",
    "Queries",
    "QueueExecutionMode",
    "QueueManager",
    "Requeued",
    "RetryException",
    "RetryRequested",
    "Schedule",
    "ScheduleError",
    "SchedulerManager",
    "SchemaError",
    "SchemaMissing",
    "SchemaTooNew",
    "SchemaTooOld",
    "Status",
    "SyncPsycopgDriver",
    "SyncQueries",
    "TableQueue",
    "TracebackRecord",
    "WorkerInfo",
    "WorkerSettings",
    "exponential",
    "linear",
    "sync_queries",
]

_DRIVERS = {"AsyncpgDriver", "AsyncpgPoolDriver", "PsycopgDriver", "SyncPsycopgDriver"}


def __getattr__(name: str) -> Any:
    # On demand, because nobody needs both client libraries.
    if name in _DRIVERS:
        from holdfast import db

        return getattr(db, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
