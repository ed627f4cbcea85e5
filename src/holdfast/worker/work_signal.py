"""Signals that a claim may find work: a wake-up came, or a job that was postponed here is due."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta

    from holdfast.worker.leases import LeaseSet

_TIMER_SLACK_SECONDS = 0.002
"""uvloop's timers may fire a millisecond early, when the job is not due yet."""


class WorkSignal:
    """Set by the listener and by settled outcomes, read by the claims."""

    def __init__(self, lease_set: LeaseSet, poll: timedelta) -> None:
        self._lease_set = lease_set
        self._poll = poll
        self._timer: asyncio.Handle | None = None
        self._due = math.inf
        """When the timer fires. Kept here, because not every timer of uvloop knows it."""
        self.pending = False
        self.listening = False
        """Whether wake-ups arrive. Without them the worker polls often."""

    def set(self) -> None:
        """Whether there may be work now."""
        self.pending = True
        self._lease_set.changed.set()

    def set_in(self, delay: timedelta) -> None:
        """Record that a job was postponed by `delay`. Nobody else announces it before the next
        poll."""
        loop = asyncio.get_running_loop()
        due = loop.time() + delay.total_seconds() + _TIMER_SLACK_SECONDS
        if delay < self._poll and due < self._due:
            self.cancel()
            self._timer, self._due = loop.call_at(due, self._fire), due

    def cancel(self) -> None:
        """Drop the postponed jobs."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = None, math.inf

    def _fire(self) -> None:
        self._timer, self._due = None, math.inf
        self.set()
