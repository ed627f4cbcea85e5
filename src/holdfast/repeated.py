"""Limits a log line that may repeat without bound to one a minute, with a count.

`RepeatedLog(logger).warning("%d leases could not be renewed: %s", count, error)` writes its first
line at once. Calls with the same message within the next minute are only counted. The line after
that minute says how many there were.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_INTERVAL_SECONDS = 60.0
_COUNTED = "%s (and %d more like it within %.0f s)"


@dataclass(slots=True)
class _Line:
    """The last line that was written for one message."""

    text: str
    level: int
    written_at: float
    left_out: int = 0


class RepeatedLog:
    """Writes each message at most once per interval. Any thread may call it.

    Messages are told apart by their template, before the arguments are filled in, so memory is
    bounded by the number of call sites. Inside a running event loop the count of a burst is written
    when the interval ends. Elsewhere it is written with the next occurrence.
    """

    def __init__(
        self,
        logger: logging.Logger,
        *,
        interval: float = _INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._interval = interval
        self._clock = clock
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}

    def warning(
        self,
        message: str,
        *args: object,
        exc_info: bool = False,
        extra: Mapping[str, object] | None = None,
    ) -> bool:
        return self.log(logging.WARNING, message, *args, exc_info=exc_info, extra=extra)

    def error(self, message: str, *args: object, exc_info: bool = False) -> bool:
        return self.log(logging.ERROR, message, *args, exc_info=exc_info)

    def log(
        self,
        level: int,
        message: str,
        *args: object,
        exc_info: bool = False,
        extra: Mapping[str, object] | None = None,
    ) -> bool:
        """Write the line or count it. Return True if it was written."""
        with self._lock:
            last, now = self._lines.get(message), self._clock()
            if last is not None and now - last.written_at < self._interval:
                last.left_out += 1
                if last.left_out == 1:
                    self._write_count_in(last.written_at + self._interval - now, message)
                return False
            text = message % args if args else message
            self._lines[message] = _Line(text, level, now)
        if last is not None and last.left_out:
            elapsed = now - last.written_at
            self._logger.log(
                level, _COUNTED, text, last.left_out, elapsed, exc_info=exc_info, extra=extra
            )
        else:
            self._logger.log(level, "%s", text, exc_info=exc_info, extra=extra)
        return True

    def _write_count_in(self, seconds: float, message: str) -> None:
        with suppress(RuntimeError):  # without a running event loop
            asyncio.get_running_loop().call_later(seconds, self._write_count, message)

    def _write_count(self, message: str) -> None:
        with self._lock:
            line, now = self._lines[message], self._clock()
            elapsed, left_out = now - line.written_at, line.left_out
            if not left_out:
                return
            early = self._interval - elapsed
            if early > 0:  # uvloop's timers may end a millisecond early
                self._write_count_in(early, message)
                return
            line.written_at, line.left_out = now, 0
        self._logger.log(line.level, _COUNTED, line.text, left_out, elapsed)
