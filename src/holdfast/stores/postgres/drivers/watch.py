"""Deadlines for calls that block their thread."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.clock import monotonic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_IDLE_SECONDS = 10.0


class Watch:
    """One call that should end in time."""

    def __init__(self, deadline: float, end: Callable[[], None]) -> None:
        self.deadline = deadline
        self.end = end
        self.over = False
        """Time was up, and it was ended."""


class _Watchman:
    """A thread for all of them, which is there while there are any."""

    def __init__(self) -> None:
        self._reset()
        # A forked child has the object and its lock, taken perhaps, but not its thread.
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._watches: set[Watch] = set()
        self._looks_at = 0.0
        self._thread: threading.Thread | None = None

    def add(self, watch: Watch) -> None:
        with self._changed:
            self._watches.add(watch)
            if self._thread is None:
                self._looks_at = watch.deadline
                self._thread = threading.Thread(
                    target=self._run, name="holdfast-deadlines", daemon=True
                )
                self._thread.start()
            elif watch.deadline < self._looks_at:
                self._changed.notify()

    def remove(self, watch: Watch) -> None:
        with self._changed:
            self._watches.discard(watch)

    def _run(self) -> None:
        with self._changed:
            while True:
                now = monotonic()
                for watch in [each for each in self._watches if each.deadline <= now]:
                    watch.over = True
                    watch.end()
                    self._watches.discard(watch)
                idle = not self._watches
                deadlines = (watch.deadline for watch in self._watches)
                self._looks_at = min(deadlines, default=now + _IDLE_SECONDS)
                self._changed.wait(max(0.0, self._looks_at - now))
                if idle and not self._watches:
                    self._thread = None
                    return


_watchman = _Watchman()


@contextmanager
def watched(seconds: float, end: Callable[[], None]) -> Iterator[Watch]:
    """Call `end` from another thread when the block is not over in time."""
    watch = Watch(monotonic() + seconds, end)
    _watchman.add(watch)
    try:
        yield watch
    finally:
        _watchman.remove(watch)
