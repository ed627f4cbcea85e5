"""Values as JSON records. Their field names are a promise to scripts."""

from __future__ import annotations

from typing import Any

from holdfast.cli.output import payload_fields
from holdfast.models import Job, LogEntry, QueueSize, Schedule, Statistic, WorkerInfo
from holdfast.redact import shown_payload

# Spelled out, so that a new field of a value does not change what scripts read unasked. The claim
# token is left out: it would let its reader write in the name of the lease's holder.
_JOB = (
    *("id", "entrypoint", "status", "priority", "execute_after", "dedupe_key", "headers"),
    *("attempts", "recoveries", "max_attempts", "max_recoveries", "created", "updated"),
    *("claimed_by", "claimed_at", "heartbeat", "lease", "last_error", "last_error_at", "held_at"),
)
_LOG = (
    *("id", "job_id", "status", "entrypoint", "priority", "attempt", "recoveries"),
    *("claimed_by", "claimed_at", "actor", "reason", "traceback", "created"),
    *("enqueued_at", "due_at", "lease", "fingerprint"),
)
_WORKER = (
    *("id", "host", "pid", "version", "entrypoints", "concurrency", "running", "state"),
    *("started_at", "heartbeat", "heartbeat_timeout"),
)
_SCHEDULE = (
    *("id", "name", "expression", "timezone", "misfire", "overlap", "paused"),
    *("next_run", "last_run", "created", "updated"),
)


def job_record(job: Job) -> dict[str, Any]:
    return {**_fields(job, _JOB), **payload_fields(shown_payload(job.payload, job.headers))}


def log_record(entry: LogEntry) -> dict[str, Any]:
    return _fields(entry, _LOG)


def worker_record(worker: WorkerInfo) -> dict[str, Any]:
    return _fields(worker, _WORKER)


def schedule_record(schedule: Schedule) -> dict[str, Any]:
    return _fields(schedule, _SCHEDULE)


def size_record(entry: QueueSize) -> dict[str, Any]:
    return _fields(entry, ("entrypoint", "priority", "status", "count"))


def statistic_record(statistic: Statistic) -> dict[str, Any]:
    return {
        "bucket": statistic.bucket,
        "entrypoint": statistic.entrypoint,
        "priority": statistic.priority,
        "status": statistic.status,
        "count": statistic.count,
        "busy_seconds": statistic.busy.total_seconds(),
        "waited": statistic.waited,
        "ran": statistic.ran,
    }


def _fields(value: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}
