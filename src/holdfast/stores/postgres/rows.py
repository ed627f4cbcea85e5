"""Rows of the database -> values of models.py, and values -> parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from holdfast.lifecycle import Status
from holdfast.models import Job, LogEntry, Schedule, TracebackRecord
from holdfast.stores.postgres.binding import JOB_COLUMNS, LOG_COLUMNS

Row = Sequence[Any]

_STATUS = {str(status): status for status in Status}
_JOB_STATUS = JOB_COLUMNS.index("status")
_JOB_HEADERS = JOB_COLUMNS.index("headers")
_LOG_STATUS = LOG_COLUMNS.index("status")
_LOG_TRACEBACK = LOG_COLUMNS.index("traceback")


def status(word: str) -> Status:
    return _STATUS[word]


def job(row: Row) -> Job:
    values = list(row)
    values[_JOB_STATUS] = _STATUS[values[_JOB_STATUS]]
    if values[_JOB_HEADERS] is not None:
        values[_JOB_HEADERS] = json.loads(values[_JOB_HEADERS])
    return Job(*values)


def log_entry(row: Row) -> LogEntry:
    values = list(row)
    values[_LOG_STATUS] = _STATUS[values[_LOG_STATUS]]
    if values[_LOG_TRACEBACK] is not None:
        values[_LOG_TRACEBACK] = json.loads(values[_LOG_TRACEBACK])
    return LogEntry._make(values)


def schedule(row: Row) -> Schedule:
    return Schedule(*row)


def headers(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value)


def traceback(record: TracebackRecord | None) -> str | None:
    """As JSON; the fields that say nothing are left out."""
    if record is None:
        return None
    fields = asdict(record)
    fields = {
        name: value
        for name, value in fields.items()
        if value is not None or name not in ("job_id", "timestamp")
    }
    return json.dumps(fields, default=lambda instant: instant.isoformat())
