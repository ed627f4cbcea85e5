"""The log of a worker on stderr: text for people or JSON for machines, and never a payload."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum

from holdfast.cli.output import clean
from holdfast.redact import redact

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
