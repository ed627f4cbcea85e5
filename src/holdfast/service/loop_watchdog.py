"""Notices that a handler blocks the worker's event loop, or the whole process."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import sys
import threading
from datetime import timedelta

from holdfast.clock import monotonic
from holdfast.service.stop import end_blocked
from holdfast.worker.run import run

logger = logging.getLogger("holdfast.run")

_INTERVAL = 0.25
_BLOCKED = 2.0
"""Seconds after which it is worth a warning."""

_ARM_SECONDS = 1.0
_LONGEST_ALARM_SECONDS = 1e9
"""A timer of the interpreter takes no more than this."""


class Pulse:
    """Asks one event loop from another how long it takes to answer."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread: threading.Thread,
        longest: timedelta | None = None,
    ) -> None:
        self._longest = longest
        """The process ends when the loop is blocked for longer. None means never."""
        self._loop = loop
        self._thread = thread
        self._asked: float | None = None

    @property
    def lag(self) -> float:
        """Seconds for which the loop has not answered."""
        asked = self._asked
        return 0.0 if asked is None else monotonic() - asked

    @property
    def blocked(self) -> bool:
        """The loop is blocked for longer than a healthy one ever is."""
        return self.lag > _BLOCKED

    async def watch(self) -> None:
        """Until cancelled, or until the loop is closed."""
        warned, blocked = False, timedelta(0)
        while not self._loop.is_closed():
            if self._asked is None:
                self._asked, warned, blocked = monotonic(), False, timedelta(0)
                self._loop.call_soon_threadsafe(self._answer)
            elif self.blocked and not warned:
                warned = True
                self._warn()
            # Counted in looks: a process that was stopped as a whole has not blocked its loop.
            blocked += timedelta(seconds=_INTERVAL)
            if self._longest is not None and blocked > self._longest:
                end_blocked(f"the event loop has been blocked for longer than {self._longest}")
            await asyncio.sleep(_INTERVAL)

    def _answer(self) -> None:
        self._asked = None

    def _warn(self) -> None:
        entrypoint, place = self._culprit()
        extra = {"seconds": round(self.lag, 3)}
        logger.warning(
            "the event loop has been blocked for %.1f s by %s at %s; "
            'let it await, or give the entrypoint executor="thread"',
            self.lag,
            f"entrypoint {entrypoint!r}" if entrypoint else "code outside any handler",
            place,
            extra=extra | ({"entrypoint": entrypoint} if entrypoint else {}),
        )

    def _culprit(self) -> tuple[str | None, str]:
        """The entrypoint and the line that the loop's thread is in now."""
        innermost = frame = sys._current_frames().get(self._thread.ident or 0)
        if innermost is None:
            return None, "an unknown line"
        place = f"{innermost.f_code.co_filename}:{innermost.f_lineno}"
        while frame is not None and frame.f_code is not run.__code__:
            frame = frame.f_back
        return (frame.f_locals["lease"].entrypoint.name if frame else None), place


async def end_when_frozen(longest: timedelta) -> None:
    """Until cancelled. End the process once no thread of Python has run for longer than that.

    A regular expression or native code may hold the interpreter's lock for ever. Then the leases
    expire, but no thread of this process can notice. The alarm is a timer outside of the
    interpreter: it prints where each thread is, and the exit code is 1.
    """
    seconds = min(longest.total_seconds(), _LONGEST_ALARM_SECONDS) + _ARM_SECONDS
    # A daemon may have been started without it.
    output = sys.__stderr__ or os.open(os.devnull, os.O_WRONLY)
    try:
        while True:
            faulthandler.dump_traceback_later(seconds, exit=True, file=output)
            await asyncio.sleep(_ARM_SECONDS)
    finally:
        faulthandler.cancel_dump_traceback_later()
