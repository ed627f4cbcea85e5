"""Runs a plain `def` handler in a thread, so that it may block."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass

from holdfast.checks import integer_fault
from holdfast.errors import InvalidInput
from holdfast.executors.coroutine import AbstractEntrypointExecutor
from holdfast.models import NOT_STARTED, SHUTDOWN, TIMED_OUT, UNTRUSTED, Context, Job

logger = logging.getLogger("holdfast")

_WAITS = {SHUTDOWN: 1, UNTRUSTED: 2}
"""Stops after which the job would be released to others, and so must not be while its thread runs.
Each is followed by one more cancellation: of a worker that stops, or of its event loop."""

DEFAULT_WORKERS = 32
IDLE_SECONDS = 10.0


class DaemonThreads:
    """At most `limit` threads that end when idle.

    The standard pool joins its threads when the interpreter exits, so one handler that never
    returns would keep a worker from stopping.
    """

    def __init__(
        self,
        limit: int,
        name: str,
        *,
        idle_seconds: float = IDLE_SECONDS,
        on_idle: Callable[[], None] | None = None,
    ) -> None:
        self._limit = limit
        self._name = name
        self._idle_seconds = idle_seconds
        self._on_idle = on_idle
        """Called in a thread that is about to end."""
        self._changed = threading.Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._idle = 0
        self._alive = 0
        self._started = 0

    def submit(self, call: Callable[[], None]) -> None:
        """Run it as soon as a thread is free; `call` must not raise."""
        with self._changed:
            self._calls.append(call)
            if len(self._calls) <= self._idle:
                self._changed.notify()
            elif self._alive < self._limit:
                self._start()

    def _start(self) -> None:
        self._alive += 1
        self._started += 1
        thread = threading.Thread(
            target=self._work, name=f"holdfast-{self._name}-{self._started}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            self._alive -= 1
            if not self._alive:
                self._calls.pop()
                raise

    def _work(self) -> None:
        while (call := self._next()) is not None:
            call()
            # While this thread waits, nothing must keep the last job's payload alive.
            del call
        if self._on_idle is not None:
            self._on_idle()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._idle += 1
            found = self._changed.wait_for(lambda: self._calls, self._idle_seconds)
            self._idle -= 1
            if found:
                return self._calls.popleft()
            self._alive -= 1
            return None


def capacity_of(max_workers: int | None, default: int) -> int:
    if max_workers is None:
        return default
    if fault := integer_fault("max_workers", max_workers, 1, None):
        raise InvalidInput(fault)
    return max_workers


def call_plainly(name: str, call: Callable[[], object]) -> None:
    """Call a handler that must have done its work when it returns."""
    result = call()
    if isinstance(result, Coroutine):
        result.close()
        raise InvalidInput(
            f"handler {name!r} returned a coroutine, which nobody awaits here; "
            f'leave out executor="thread" or executor="process"'
        )


@dataclass(eq=False)
class ThreadExecutor(AbstractEntrypointExecutor):
    """Runs the handler in a thread of its own pool.

    A thread cannot be stopped. When the job is cancelled, `context.cancellation` says so and the
    worker goes on at once; a handler that does not look keeps its thread until it returns, and no
    other job is claimed for that. Only a job that would be released stays leased until then, or
    until its worker has ended.
    """

    max_workers: int | None = None

    def __post_init__(self) -> None:
        default = self.parameters.concurrency_limit or DEFAULT_WORKERS
        self._capacity = capacity_of(self.max_workers, default)
        self._threads = DaemonThreads(self._capacity, self.parameters.name)

    @property
    def capacity(self) -> int:
        return self._capacity

    async def execute(self, job: Job, context: Context) -> None:
        run: Future[BaseException | None] = Future()
        variables = copy_context()
        self._threads.submit(lambda: variables.run(self._run, run, job, context))
        error = await self._result(run, job, context)
        if error is not None:
            try:
                raise error
            finally:
                # The traceback holds this frame: without this the two keep each other alive.
                del error

    async def _result(
        self, run: Future[BaseException | None], job: Job, context: Context
    ) -> BaseException | None:
        stops = 0
        while True:
            try:
                return await asyncio.wrap_future(run)
            except asyncio.CancelledError:
                if run.cancel():
                    # The handler was never called, so its time is not up: the job is released.
                    context.cancellation.cancel(NOT_STARTED)
                    raise
                # A worker says why before it cancels; only a timeout comes without a word.
                context.cancellation.cancel(TIMED_OUT)
                stops += 1
                if run.running() and stops == 1:
                    self._warn(job)
                if not run.running() or stops > _WAITS.get(context.cancellation.reason or "", 0):
                    context.cancellation.runs_on = run
                    raise

    def _run(self, run: Future[BaseException | None], job: Job, context: Context) -> None:
        if not run.set_running_or_notify_cancel():
            return
        arguments = (job, context) if self.parameters.accepts_context else (job,)
        try:
            call_plainly(self.parameters.name, lambda: self.parameters.func(*arguments))
        except BaseException as error:
            # As a result, because a future refuses StopIteration and would never be done.
            run.set_result(error)
        else:
            run.set_result(None)

    def _warn(self, job: Job) -> None:
        logger.warning(
            "handler %r of job %s was cancelled but its thread is still running; "
            "let the handler look at context.cancellation.cancel_called and return",
            self.parameters.name,
            job.id,
        )
