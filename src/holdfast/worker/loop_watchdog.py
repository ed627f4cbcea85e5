"""Notices from another thread that the event loop is blocked, and by which handler."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.repeated import RepeatedLog

if TYPE_CHECKING:
    from datetime import timedelta

    from holdfast.worker.leases import Lease, LeaseSet

logger = logging.getLogger("holdfast.worker")

_CHECK_SECONDS = 0.5
_WARN_SECONDS = 2.0
"""A healthy event loop is never blocked for this long."""

_LOG_SECONDS = 1.0
"""The blocked thread may hold the lock of the log. The critical line waits no longer for it."""
_STACK_FRAMES = 10


@dataclass(frozen=True, slots=True)
class Blocked:
    """An event loop that was blocked for longer than is allowed."""

    lease: Lease | None
    """The job whose handler blocks it. None means that no handler is known to."""
    limit: str
    """The limit that was exceeded, in words."""
    stack: str

    def __str__(self) -> str:
        return f"{_name(self.lease)} has blocked the event loop for longer than {self.limit}"


class LoopWatchdog:
    """Measures the lag of the worker's event loop from another one.

    The renewing thread runs it; where there is none, the process around the worker does.
    """

    def __init__(self, lease_set: LeaseSet, longest: timedelta) -> None:
        self._lease_set = lease_set
        self._longest = longest
        self._home = asyncio.get_running_loop()
        self._home_thread = threading.get_ident()
        self._asked: float | None = None
        self._checked = 0.0
        self._blocked_seconds = 0.0
        """The lag, without the time for which the whole process was stopped."""
        self._warned = False
        self._abandoned = False
        self._log = RepeatedLog(logger)

    @property
    def gone(self) -> bool:
        """The event loop will not run again, though the worker has not ended."""
        return self._abandoned or self._home.is_closed()

    def abandon(self) -> bool:
        """Record that the process ends. Return False if the event loop still runs."""
        self._abandoned = not self._home.is_running()
        return self._abandoned

    @property
    def lag(self) -> float:
        """Seconds for which the event loop has not answered. May be read in any thread."""
        asked = self._asked
        return 0.0 if asked is None else monotonic() - asked

    @property
    def blocked(self) -> bool:
        """The event loop is blocked for longer than a healthy one ever is."""
        return self.lag > _WARN_SECONDS

    async def run(self) -> Blocked | None:
        """Watch from another thread's event loop, until the watched one is blocked for too long.
        None means that it is gone."""
        while not self.gone:
            self._measure()
            if (blocked := self._judge()) is not None:
                return blocked
            await asyncio.sleep(_CHECK_SECONDS)
        return None

    async def until_answered(self) -> None:
        """Wait until the event loop answers again, or is gone."""
        while self._asked is not None and not self.gone:  # noqa: ASYNC110 - no event reaches here
            await asyncio.sleep(_CHECK_SECONDS)

    def _measure(self) -> None:
        now, before = monotonic(), self._checked
        self._checked = now
        if self._asked is None:
            self._asked, self._blocked_seconds = now, 0.0
            # It may be closed in this moment, which is noticed in the next one.
            with suppress(RuntimeError):
                self._home.call_soon_threadsafe(self._answer)
            return
        self._lease_set.loop_blocked = True
        # A process that was stopped as a whole has not blocked its event loop.
        self._blocked_seconds += min(now - before, 2 * _CHECK_SECONDS)
        if not self._warned and self.blocked:
            self._warned = True
            self._warn()

    def _judge(self) -> Blocked | None:
        """Whether the loop has been blocked for longer than its settings or its job allow."""
        if self._asked is None or self._blocked_seconds < min(
            _WARN_SECONDS, self._longest.total_seconds()
        ):
            return None
        lease = self._culprit()
        limit, words = self._longest, f"max_loop_block ({self._longest})"
        timeout = lease.entrypoint.timeout if lease is not None else None
        if timeout is not None and timeout < limit:
            limit, words = timeout, f"the timeout of its entrypoint ({timeout})"
        if self._blocked_seconds <= limit.total_seconds():
            return None
        blocked = Blocked(lease, words, self._stack())
        # A blocked thread that holds the lock of the log must not block this one.
        logging_thread = threading.Thread(target=_log, args=(blocked,), daemon=True)
        logging_thread.start()
        logging_thread.join(_LOG_SECONDS)
        return blocked

    def _warn(self) -> None:
        lease, calls = self._culprit(), self._calls()
        extra: dict[str, object] = {"seconds": round(self.lag, 3)}
        if lease is not None:
            extra |= {"entrypoint": lease.entrypoint.name, "job_id": lease.job.id}
        self._log.warning(
            "%s has blocked the event loop for more than %g s at %s: no other job, timeout or "
            'signal is handled; let it await, or make it a plain def with executor="thread"',
            _name(lease),
            _WARN_SECONDS,
            f"{calls[-1].filename}:{calls[-1].lineno}" if calls else "an unknown line",
            extra=extra,
        )

    def _culprit(self) -> Lease | None:
        task = asyncio.current_task(self._home)
        if task is None:
            return None
        return next((lease for lease in self._lease_set.snapshot() if lease.task is task), None)

    def _stack(self) -> str:
        """The innermost calls of the blocked thread, in one line as logs like it."""
        calls = [
            f"{each.filename}:{each.lineno} in {each.name}: {each.line}" for each in self._calls()
        ]
        return " < ".join(reversed(calls))

    def _calls(self) -> list[traceback.FrameSummary]:
        frame = sys._current_frames().get(self._home_thread)
        return traceback.extract_stack(frame)[-_STACK_FRAMES:] if frame is not None else []

    def _answer(self) -> None:
        if self._lease_set.loop_blocked and self._asked is not None:
            self._lease_set.excuse(monotonic() - self._asked)
        self._asked, self._warned = None, False


def _name(lease: Lease | None) -> str:
    if lease is None:
        return "something"
    return f"the handler of {lease.entrypoint.name!r} (job {lease.job.id})"


def _log(blocked: Blocked) -> None:
    logger.critical("%s: leases are no longer renewed; it is at %s", blocked, blocked.stack)
