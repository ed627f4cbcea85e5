"""The stop of a worker process: heard while a handler blocks, and over when its time is up."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import math
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import FrameType

from holdfast.clock import monotonic

logger = logging.getLogger("holdfast.run")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
GRACEFUL, FAST = 1, 2
"""How far a stop has come: at first jobs may finish, then they are released at once."""

EXIT_OVERDUE = 75
"""The exit code of a worker that had to end before its jobs did."""

EXIT_BLOCKED = 76
"""The exit code of a worker whose event loop was blocked for longer than is allowed."""

GRACE_SECONDS = 0.9
"""Seconds beyond the drain timeout for handlers that are asked to stop and for the last writes."""

FAST_STOP_SECONDS = 2.0
"""Seconds for all that once a stop is fast."""

_LOG_SECONDS = 0.1
_ARM_SECONDS = 1.0
_LONGEST_ALARM_SECONDS = 1e9
"""A timer of the interpreter takes no more than this."""

# Asked levels travel beside signal numbers, all of which are smaller.
_LEVELS = 200


def signals() -> list[signal.Signals]:
    """Those that mean a stop; under nohup, SIGHUP does not."""
    kept = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in SIGNALS if not (kept and number is signal.SIGHUP)]


class Stop:
    """Hears of the signals, and ends the process when its stop takes too long.

    A supervisor and a service manager may both tell the same thing, in either order. So what the
    parent asks for is a level, signals to this very process are counted, and the further of the
    two is how far the stop has come.

    Python runs signal handlers on the main thread, which a handler may block for good. So a thread
    hears of signals through the wake-up descriptor, which is written to wherever the main thread
    is.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._deadline: float | None = None
        self._tell: list[Callable[[int], object]] = []
        self._before = {number: signal.getsignal(number) for number in signals()}
        self._hear, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._signals = 0
        self.level = 0

    def watch(self) -> None:
        """From now on until the process ends."""
        threading.Thread(target=self._watch, name="holdfast-stop", daemon=True).start()
        for number in self._before:
            signal.signal(number, self._caught)
        self.reclaim()
        os.register_at_fork(after_in_child=self._forget)

    def reclaim(self) -> None:
        """Take the wake-up descriptor back from an event loop that takes it when it starts."""
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)

    def listen(self, loop: asyncio.AbstractEventLoop, on_stop: Callable[[int], None]) -> None:
        """Call `on_stop` in the loop with the level, whenever it has risen."""

        def tell(level: int) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(on_stop, level)

        self._tell.append(tell)
        if self.level:
            on_stop(self.level)

    def ask(self, level: int) -> None:
        """Stop at least as fast as this."""
        self._write(_LEVELS + min(level, FAST))

    def _caught(self, number: int, frame: FrameType | None) -> None:
        taken = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        if taken != self._wake.fileno():
            # The descriptor of an event loop was written to, so the thread does not know yet.
            signal.set_wakeup_fd(taken)
            self._write(number)

    def _write(self, number: int) -> None:
        try:
            self._wake.send(bytes([number]))
        except OSError:
            # The buffer is full of signals. One more says nothing new.
            return

    def _forget(self) -> None:
        """A forked child must neither answer for this process nor ignore its own signals."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _watch(self) -> None:
        while True:
            left = None if self._deadline is None else max(0.0, self._deadline - monotonic())
            if not select.select([self._hear], [], [], left)[0]:
                self._end()
            for number in self._hear.recv(64):
                if number > _LEVELS:
                    self._rise(number - _LEVELS)
                elif number in self._before:
                    self._signals += 1
                    self._rise(self._signals)

    def _rise(self, level: int) -> None:
        if level <= self.level:
            return
        self.level = level
        left = self._patience + GRACE_SECONDS if level < FAST else FAST_STOP_SECONDS
        self._deadline = min(self._deadline or math.inf, monotonic() + left)
        for tell in self._tell:
            # The loop may be closed in this moment; what is left to do then is to exit.
            with suppress(RuntimeError):
                tell(level)

    def _end(self) -> None:
        _exit(
            EXIT_OVERDUE,
            "the worker has not stopped in time and is ended; jobs it still holds start again "
            "elsewhere when their leases have run out",
        )


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


def end_blocked(reason: str) -> None:
    """End this process, from another thread than the blocked one."""
    _exit(
        EXIT_BLOCKED,
        f"{reason}: the process ends with exit code {EXIT_BLOCKED}; the job counts as having "
        "killed its worker, and the others are released",
    )


def _exit(code: int, words: str) -> None:
    def say() -> None:
        logger.error(words)
        sys.stderr.flush()

    # The blocked thread may hold the lock of the log, and the pipe behind it may be full.
    talking = threading.Thread(target=say, daemon=True)
    talking.start()
    talking.join(_LOG_SECONDS)
    os._exit(code)
