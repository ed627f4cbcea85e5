"""Notices that a handler blocks the worker's event loop, and says which."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading

from holdfast.clock import monotonic
from holdfast.worker.run import run

logger = logging.getLogger("holdfast.run")

_INTERVAL = 0.25
_BLOCKED = 2.0
"""Seconds after which it is worth a warning."""


class Pulse:
    """Asks one event loop from another how long it takes to answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self._loop = loop
        self._thread = thread
        self._asked: float | None = None

    @property
    def lag(self) -> float:
        """Seconds for which the loop has not answered."""
        asked = self._asked
        return 0.0 if asked is None else monotonic() - asked

    async def watch(self) -> None:
        """Until cancelled, or until the loop is closed."""
        warned = False
        while not self._loop.is_closed():
            if self._asked is None:
                self._asked, warned = monotonic(), False
                self._loop.call_soon_threadsafe(self._answer)
            elif self.lag > _BLOCKED and not warned:
                warned = True
                self._warn()
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
