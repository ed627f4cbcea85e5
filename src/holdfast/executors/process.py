"""Runs a plain `def` handler in a child process, which can be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING

from holdfast.errors import HandlerExit, InvalidInput, RetryRequested
from holdfast.executors.child import REAP_SECONDS, HandlerProcess, Reply
from holdfast.executors.coroutine import AbstractEntrypointExecutor
from holdfast.executors.thread import IDLE_SECONDS, DaemonThreads, capacity_of
from holdfast.models import NOT_STARTED
from holdfast.retry import RemoteError
from holdfast.task import underlying, where

if TYPE_CHECKING:
    from holdfast.models import Context, Job


class Run:
    """One job's turn in a child: a stop kills the child during the turn, never after it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: HandlerProcess | None = None
        self._stopped = False

    def begin(self, child: HandlerProcess) -> None:
        with self._lock:
            self._child = child
            if self._stopped:
                child.kill()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._child is not None:
                self._child.kill()

    def end(self) -> bool:
        """Whether the child can take another job."""
        with self._lock:
            self._child = None
            return not self._stopped


@dataclass(eq=False)
class ProcessExecutor(AbstractEntrypointExecutor):
    """Runs the handler in one of `max_workers` children, each of which runs one job at a time.

    A child is kept for the next job, and dies with the job that is cancelled in it, with the
    worker, or after a while without work. The handler must be found by its name from another
    process, and gets its job alone.
    """

    max_workers: int | None = None
    idle_seconds: float = IDLE_SECONDS

    def __post_init__(self) -> None:
        self._check_name()
        default = self.parameters.concurrency_limit or os.cpu_count() or 1
        self._capacity = capacity_of(self.max_workers, default)
        # Talking to a child blocks. Each thread has a child of its own and outlives no child.
        self._threads = DaemonThreads(
            self._capacity,
            self.parameters.name,
            idle_seconds=self.idle_seconds,
            on_idle=self._discard,
        )
        self._own = threading.local()

    @property
    def capacity(self) -> int:
        return self._capacity

    async def execute(self, job: Job, context: Context) -> None:
        answer: Future[Reply | BaseException | None] = Future()
        run = Run()
        self._threads.submit(lambda: self._work(answer, run, job))
        try:
            reply = await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            if answer.cancel():
                # The handler was never called, so its time is not up: the job is released.
                context.cancellation.cancel(NOT_STARTED)
                raise
            context.cancellation.runs_on = answer
            run.stop()
            # The lease may be given up once this returns, so the child should be gone by then.
            await asyncio.wait([asyncio.wrap_future(answer)], timeout=REAP_SECONDS)
            raise
        if isinstance(reply, BaseException):
            raise reply
        if reply is not None:
            self._raise(reply)

    def _work(self, answer: Future[Reply | BaseException | None], run: Run, job: Job) -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(self._ask(run, job))
        except BaseException as error:
            answer.set_result(error)

    def _ask(self, run: Run, job: Job) -> Reply | None:
        request = self._request(job)
        while True:
            child = self._child()
            run.begin(child)
            try:
                reply = child.ask(request)
            except (EOFError, OSError):
                died_idle = run.end() and child.died_idle
                error = self._death(child, job)
                if not died_idle:
                    raise error from None
            else:
                if not run.end():
                    self._discard()
                return reply

    def _request(self, job: Job) -> bytes:
        try:
            return bytes(ForkingPickler.dumps((self.parameters.name, self.parameters.func, job)))
        except Exception as error:
            raise InvalidInput(
                f"handler {self.parameters.name!r} ({where(self.parameters.func)}) or job {job.id} "
                f"cannot be sent to another process: {error}; "
                f"define the handler at the top level of a module"
            ) from error

    def _child(self) -> HandlerProcess:
        child: HandlerProcess | None = getattr(self._own, "child", None)
        if child is not None and not child.alive:
            self._discard()
            child = None
        if child is None:
            child = self._own.child = HandlerProcess()
        return child

    def _discard(self) -> None:
        child: HandlerProcess | None = getattr(self._own, "child", None)
        if child is not None:
            self._own.child = None
            child.reap()

    def _death(self, child: HandlerProcess, job: Job) -> HandlerExit:
        self._own.child = None
        code = child.bury()
        return HandlerExit(
            f"handler {self.parameters.name!r} of job {job.id} died with exit code "
            f"{_exit_text(code)}; look for os._exit, a crash in native code or, at -9, for the "
            f"kernel's out-of-memory killer"
        )

    def _raise(self, reply: Reply) -> None:
        error = RemoteError(reply.exception_type, reply.exception_message, reply.traceback)
        if reply.retry_delay is not None:
            raise RetryRequested(reply.retry_delay, reply.retry_reason) from error
        raise error

    def _check_name(self) -> None:
        func = underlying(self.parameters.func)
        name = getattr(func, "__qualname__", "")
        if "<locals>" in name or "<lambda>" in name:
            raise InvalidInput(
                f"handler {self.parameters.name!r} is {name} ({where(func)}), which another "
                f"process cannot find by name; define it at the top level of a module"
            )


def _exit_text(code: int | None) -> str:
    if code is None:
        return "unknown"
    if code >= 0:
        return str(code)
    try:
        return f"{code} ({signal.Signals(-code).name})"
    except ValueError:
        return str(code)
