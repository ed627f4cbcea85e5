"""A child process that runs handlers, seen from both of its sides."""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
import signal
import threading
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet

from holdfast.executors.thread import call_plainly
from holdfast.retry import delay_of, describe, reason_of, requested

if TYPE_CHECKING:
    from datetime import timedelta
    from multiprocessing.connection import Connection
    from types import FrameType

REAP_SECONDS = 5.0
"""How long an ended child may take to go away."""

_LOOK_SECONDS = 1.0
_SPAWN = multiprocessing.get_context("spawn")


class Reply(NamedTuple):
    """A handler's exception as plain values, because exceptions need not survive pickling."""

    exception_type: str
    exception_message: str
    traceback: str
    retry_delay: timedelta | None = None
    retry_reason: str | None = None


class HandlerProcess:
    """The parent's handle of a process that runs one job after another."""

    def __init__(self) -> None:
        self._connection, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=_serve, args=(theirs,), name="holdfast-handler", daemon=True
        )
        self._process.start()
        # Only the child may hold its end, or its death would not be seen as an end of file.
        theirs.close()
        self._has_job = self._has_served = False
        _children.add(self)

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def ask(self, request: bytes) -> Reply | None:
        """Block until the job is done; EOFError or OSError when the child died over it."""
        self._has_job = False
        self._connection.send_bytes(request)
        self._receive()
        self._has_job = True
        reply = self._receive()
        self._has_served = True
        return reply

    @property
    def died_idle(self) -> bool:
        """Whether it had served jobs and died before it was given the present one."""
        return self._has_served and not self._has_job

    def _receive(self) -> Reply | None:
        # A process forked by the handler inherits the child's end and can keep it open.
        while not self._connection.poll(_LOOK_SECONDS):
            if not self.alive and not self._connection.poll():
                raise EOFError
        message: Reply | None = self._connection.recv()
        return message

    def kill(self) -> None:
        """End it, and whatever it started."""
        # Until it leads a group of its own, it is alone.
        if self.alive and not self._end_group():
            self._process.kill()

    def bury(self) -> int | None:
        """After its death: end what it left behind and return its exit code."""
        self._end_group()
        return self.reap()

    def reap(self) -> int | None:
        """Close the connection. Return the exit code, None if something else has collected it."""
        self._connection.close()
        self._process.join(REAP_SECONDS)
        if self.alive:
            self.kill()
            self._process.join(REAP_SECONDS)
        return self._process.exitcode

    def _end_group(self) -> bool:
        pid = self._process.pid
        try:
            if pid is not None:
                os.killpg(pid, signal.SIGKILL)
        except OSError:
            return False
        return pid is not None


_children: WeakSet[HandlerProcess] = WeakSet()


def _kill_children() -> None:
    """Before multiprocessing asks them politely and waits: they leave SIGTERM to the worker."""
    for child in list(_children):
        child.kill()


# Registered after multiprocessing.util was imported, and so run before its own.
atexit.register(_kill_children)


def _serve(connection: Connection) -> None:
    # A group of its own: Ctrl-C reaches the worker only, and the handler's processes end with it.
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave_to_the_worker)
    threading.Thread(target=_die_with_the_worker, daemon=True).start()
    while True:
        try:
            request = connection.recv_bytes()
        except (EOFError, OSError):
            return
        connection.send(None)
        connection.send(_run(request))


def _leave_to_the_worker(number: int, frame: FrameType | None) -> None:
    """A service manager signals all processes of a worker, which then drains its handlers."""


def _die_with_the_worker() -> None:
    """A job whose worker is dead will be run by another one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.killpg(os.getpgrp(), signal.SIGKILL)


def _run(request: bytes) -> Reply | None:
    try:
        name, func, job = ForkingPickler.loads(request)
        call_plainly(name, lambda: func(job))
    except BaseException as error:
        return _reply(error)
    return None


def _reply(error: BaseException) -> Reply:
    record = describe(error)
    text = (record.exception_type, record.exception_message, record.traceback)
    if request := requested(error):
        return Reply(*text, delay_of(request), reason_of(request))
    return Reply(*text)
