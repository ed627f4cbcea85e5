"""Lets renewing threads release jobs when the interpreter ends in the middle of a worker's run."""

from __future__ import annotations

import atexit
import threading

# It registers its own end when it is imported. Whatever registers later is called earlier, and then
# host names can still be resolved.
from concurrent.futures import thread as _resolving  # noqa: F401
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

from holdfast.clock import monotonic

_EXIT_SECONDS = 3.5
"""A little more than the release of jobs may take. The process ends afterwards in any case."""


class Exiting(Protocol):
    """What has jobs to release."""

    def begin_release(self) -> None: ...
    def join(self, seconds: float) -> None: ...


class _AtExit:
    def __init__(self) -> None:
        self._there: WeakSet[Exiting] = WeakSet()
        self._registered = False

    def add(self, each: Exiting) -> None:
        """Call it at the end of the interpreter, if it still exists then."""
        self._there.add(each)
        if self._registered:
            return
        self._registered = True
        # The ordinary hook comes too late: after it has been made impossible to resolve names.
        register = getattr(threading, "_register_atexit", atexit.register)
        with suppress(RuntimeError):
            # The interpreter ends already.
            register(self._release)

    def _release(self) -> None:
        there, deadline = list(self._there), monotonic() + _EXIT_SECONDS
        for each in there:
            each.begin_release()
        for each in there:
            each.join(max(0.0, deadline - monotonic()))


at_exit = _AtExit()
