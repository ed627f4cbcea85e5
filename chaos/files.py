"""Histories on disk: lines of JSON, each appended whole, so that a killed writer loses none."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Line = dict[str, Any]

SECOND = 1_000_000
"""Instants are whole microseconds since the epoch, as PostgreSQL has them: they can be compared."""

WORKER_PROGRAM = "chaos.worker"
OLD_WORKER_PROGRAM = "chaos.old_worker"
WORKER_PROGRAMS = (WORKER_PROGRAM, OLD_WORKER_PROGRAM)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


_SKEW = int(os.environ.get("CHAOS_SKEW_SECONDS", "0")) * SECOND
"""By which the clock of this process was made wrong: journals tell the right time all the same."""


PATIENCE = float(os.environ.get("CHAOS_PATIENCE", "1"))
"""Factor on how long something may take; more than 1 where other programs use the machine, too."""


def now() -> int:
    return time.time_ns() // 1000 - _SKEW


def instant(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


class Journal:
    """One process's lines; the file is opened for appending, so that several may share it."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(path, flags, 0o644)

    def note(self, event: str, **fields: object) -> None:
        line = {"e": event, "t": now(), **fields}
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> Iterator[Line]:
    """The lines of a file that may not exist; one torn by a full disk is left out."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield json.loads(line)


def read_all(directory: Path, pattern: str) -> Iterator[Line]:
    for path in sorted(directory.glob(pattern)):
        yield from read(path)
