"""Values as JSON records. Their field names are a promise to scripts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from holdfast.cli.output import payload_fields
from holdfast.models import Job, LogEntry, QueueSize, Schedule, Statistic, WorkerInfo

# The token would let its reader write in the name of the lease's holder.
_SECRET = ("claim_token",)


def job_record(job: Job) -> dict[str, Any]:
    fields = {name: value for name, value in job._asdict().items() if name not in _SECRET}
    return {**fields, **payload_fields(job.payload)}


def log_record(entry: LogEntry) -> dict[str, Any]:
    return entry._asdict()


def worker_record(worker: WorkerInfo) -> dict[str, Any]:
    return worker._asdict()


def schedule_record(schedule: Schedule) -> dict[str, Any]:
    return {name: value for name, value in schedule._asdict().items() if name != "slot"}


def size_record(entry: QueueSize) -> dict[str, Any]:
    return asdict(entry)


def statistic_record(statistic: Statistic) -> dict[str, Any]:
    return {
        "bucket": statistic.bucket,
        "entrypoint": statistic.entrypoint,
        "priority": statistic.priority,
        "status": statistic.status,
        "count": statistic.count,
        "busy_seconds": statistic.busy.total_seconds(),
    }
