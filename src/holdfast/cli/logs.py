"""The log of a worker on stderr: text for people or JSON for machines, and never a payload."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum

from holdfast.cli.output import clean
from holdfast.events import Event, Settled
from holdfast.models import (
    Abandoned,
    Failed,
    Held,
    Job,
    Outcome,
    Released,
    Retried,
    Succeeded,
    TracebackRecord,
)
from holdfast.redact import MASK, redact, secrets_in

logger = logging.getLogger("holdfast.job")

# Only these extras of a record are written: whatever else a caller attaches may hold job data.
_FIELDS = (
    "job_id",
    "entrypoint",
    "attempt",
    "worker",
    "outcome",
    "seconds",
    "error_type",
    "traceback",
)

_LONGEST_MESSAGE = 500
_LEAST_HIDDEN = 4
"""Shorter payloads would mask words that have nothing to do with them."""
_LONGEST_TRACEBACK = 4000


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class LogFormat(StrEnum):
    text = "text"
    json = "json"


def configure(level: LogLevel, style: LogFormat) -> None:
    """Send everything that is logged in this process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style is LogFormat.json else TextFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    # It reports every change that it filters out afterwards.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    logging.captureWarnings(True)


def _instant(record: logging.LogRecord) -> str:
    instant = datetime.fromtimestamp(record.created, UTC)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """`2030-01-31T09:00:00.000Z INFO    1234 holdfast.worker: message`."""

    def format(self, record: logging.LogRecord) -> str:
        line = (
            f"{_instant(record)} {record.levelname:7} {record.process} {record.name}: "
            f"{clean(redact(record.getMessage()))}"
        )
        if record.exc_info:
            words = redact(self.formatException(record.exc_info))
            line += "\n" + clean(words, keep_lines=True)
        if hasattr(record, "traceback"):
            line += "\n" + clean(redact(str(record.traceback)), keep_lines=True)
        return line


class JsonFormatter(logging.Formatter):
    """One object a line, in ASCII, so that no message can forge a second line."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "ts": _instant(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
            "pid": record.process,
        }
        fields |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            fields["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(fields, default=str)


class JobLog:
    """An observer that logs how each job ended.

    A failure is logged with its message and traceback. Credentials are masked in them, and what
    they quote of the payload.
    """

    def notify(self, event: Event) -> None:
        if isinstance(event, Settled):
            for run in event.runs:
                self._log(event.worker, *run)

    def _log(self, worker: str, job: Job, outcome: Outcome, seconds: float) -> None:
        level, words, record = _described(outcome)
        if not logger.isEnabledFor(level):
            return
        extra: dict[str, object] = {
            "job_id": job.id,
            "entrypoint": job.entrypoint,
            "attempt": job.attempts,
            "worker": worker,
            "outcome": type(outcome).__name__.lower(),
            "seconds": round(seconds, 6),
        }
        if record is not None:
            extra["error_type"] = record.exception_type
            hide = _hider(job)
            words += f" with {record.exception_type}: {_shortened(hide(record.exception_message))}"
            if level >= logging.WARNING:
                extra["traceback"] = hide(record.traceback).rstrip()[-_LONGEST_TRACEBACK:]
        logger.log(level, "job %s (%s) %s", job.id, job.entrypoint, words, extra=extra)


def _hider(job: Job) -> Callable[[str], str]:
    """Masks quotes of the payload in a text: all of the payload, or a value of a JSON payload."""
    payload = (job.payload or b"").decode("utf-8", "replace")
    try:
        hidden = secrets_in(json.loads(payload), [()])
    except (ValueError, RecursionError):
        hidden = set()
    if len(payload) >= _LEAST_HIDDEN:
        hidden.add(payload)

    def hide(text: str) -> str:
        for value in sorted(hidden, key=len, reverse=True):
            text = text.replace(value, MASK)
        return text

    return hide


def _shortened(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[:_LONGEST_MESSAGE]}…"


def _described(outcome: Outcome) -> tuple[int, str, TracebackRecord | None]:
    """Return the level of a line, its words, and the exception behind it."""
    match outcome:
        case Succeeded():
            return logging.DEBUG, "succeeded", None
        case Retried(delay, _, traceback):
            words = f"will be retried in {delay}"
            return logging.INFO, words, traceback
        case Failed(_, traceback):
            return logging.WARNING, "failed", traceback
        case Held(_, traceback):
            return logging.WARNING, "is held", traceback
        case Released(reason):
            return logging.INFO, f"was released ({reason})", None
        case Abandoned(reason):
            return logging.INFO, f"was given up ({reason})", None
