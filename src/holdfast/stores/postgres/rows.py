"""Rows of the database -> values of models.py, and values -> parameters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import UnreadableReply
from holdfast.lifecycle import RETIRE_UNCLAIMABLE, TRANSITIONS, Status, Verb
from holdfast.models import Job, LargePayload, LogEntry, Schedule, Statistic, TracebackRecord
from holdfast.stores.postgres.binding import JOB_COLUMNS, LEASE_COLUMNS, LOG_COLUMNS

if TYPE_CHECKING:
    from uuid import UUID

Row = Sequence[Any]
T = TypeVar("T")

_STATUS = {str(status): status for status in Status}
_PICKED, _HELD = TRANSITIONS[Verb.CLAIM].target, RETIRE_UNCLAIMABLE.target
_job_of: Callable[[tuple[Any, ...]], Job] = partial(tuple.__new__, Job)
"""Job._make without its check of the length, which takes half its time."""
_JOB_STATUS = JOB_COLUMNS.index("status")
_JOB_HEADERS = JOB_COLUMNS.index("headers")
_WORDS = (str, bytes)
"""JSON as it arrives. A caller's asyncpg connection may have a codec that has read it already, as
those of SQLAlchemy have."""
_NO_LEASE: dict[str, Any] = dict.fromkeys(LEASE_COLUMNS)
_LOG_STATUS = LOG_COLUMNS.index("status")
_LOG_TRACEBACK = LOG_COLUMNS.index("traceback")


def status(word: str) -> Status:
    return _STATUS[word]


def stored(row: Row) -> Job:
    """Return the row as it stands."""
    values = list(row)
    values[_JOB_STATUS] = _STATUS[values[_JOB_STATUS]]
    if isinstance(values[_JOB_HEADERS], _WORDS):
        values[_JOB_HEADERS] = json.loads(values[_JOB_HEADERS])
    return Job(*values)


def job(row: Row) -> Job:
    """Return the row without a lease that counts no more, because a person queued it by hand."""
    found = stored(row)
    return found if found.status is _PICKED else found._replace(**_NO_LEASE)


class Instants(dict[float | None, datetime | None]):
    """Seconds since 1970 -> the instant, the same object for the same. To the microsecond, up to
    the year 2100; nothing later can be due."""

    def __missing__(self, seconds: float | None) -> datetime | None:
        instant = None
        if seconds is not None:
            try:
                instant = datetime.fromtimestamp(seconds, UTC)
            except (OverflowError, ValueError):
                # Written by hand: beyond the years that Python has.
                instant = (datetime.max if seconds > 0 else datetime.min).replace(tzinfo=UTC)
        self[seconds] = instant
        return instant


def _headers(words: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(words, dict):
        return words
    try:
        found: dict[str, Any] = json.loads(words)
    except (ValueError, RecursionError) as error:
        raise UnreadableReply(type(error).__name__, "headers") from None
    return found


def claimed(
    row: Row, token: UUID, worker: str, leases: Mapping[str, timedelta], instants: Instants
) -> Job:
    """A row that a claim returned: leased, unless it had no attempts left and is held now."""
    (
        job_id, entrypoint, payload, priority, execute_after, attempts, recoveries, max_attempts,
        max_recoveries, dedupe_key, words, created, updated, error, error_at, held_at, size,
    ) = row  # fmt: skip
    about = None if words is None else _headers(words)
    leased = held_at is None
    if size is not None:
        payload = LargePayload.of(size)
    now = instants[updated]
    values = (
        job_id, entrypoint, payload, priority, _PICKED if leased else _HELD,
        instants[execute_after], attempts, recoveries, max_attempts, max_recoveries, dedupe_key,
        about, instants[created], now, now if leased else None, token if leased else None,
        worker if leased else None, now if leased else None,
        leases[entrypoint] if leased else None,
        error, instants[error_at], instants[held_at], None,
    )  # fmt: skip
    return _job_of(values)


def integers(values: Iterable[int]) -> str:
    """An array as text."""
    return "{" + ",".join(map(str, values)) + "}"


def column(values: list[T | None]) -> list[T | None] | None:
    """Return None for an array of nulls. It is not sent, and PostgreSQL reads nulls instead."""
    return None if values.count(None) == len(values) else values


def log_entry(row: Row) -> LogEntry:
    values = list(row)
    values[_LOG_STATUS] = _STATUS[values[_LOG_STATUS]]
    if isinstance(values[_LOG_TRACEBACK], _WORDS):
        values[_LOG_TRACEBACK] = json.loads(values[_LOG_TRACEBACK])
    return LogEntry._make(values)


def schedule(row: Row) -> Schedule:
    return Schedule(*row)


def headers(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value)


def statistic(row: Row) -> Statistic:
    bucket, entrypoint, priority, word, count, busy, waited, ran = row
    return Statistic(
        bucket, entrypoint, priority, _STATUS[word], count, busy, tuple(waited), tuple(ran)
    )


def traceback(record: TracebackRecord | None) -> str | None:
    """Return the record as JSON, without a job id or time that is not known."""
    if record is None:
        return None
    fields = asdict(record)
    fields = {
        name: value
        for name, value in fields.items()
        if value is not None or name not in ("job_id", "timestamp")
    }
    return json.dumps(fields, default=lambda instant: instant.isoformat())
