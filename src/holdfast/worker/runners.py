"""Runs leases in tasks: one that never had to wait for anything goes on with the next job.

Making a task and having the event loop find it costs as much as all else that is done for a small
job. So tasks are made as they are needed: one for all jobs that are ready, another when the first
has to wait, and twice as many each time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.models import Outcome, Released

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from holdfast.worker.hand import Lease

_NOT_STARTED = Released("not started")
_TURN = 0.005
"""Seconds after which a task lets the rest of the event loop have its turn."""


class Runners:
    """A job finds its task as if it were new: same context variables, no cancellation pending."""

    def __init__(
        self, run: Callable[[Lease], Awaitable[Outcome]], end: Callable[[Lease, Outcome], None]
    ) -> None:
        self._run = run
        self._end = end
        self._ready: deque[Lease] = deque()
        self._launch: asyncio.Handle | None = None
        self._ending = False
        self._next = 1
        self._tasks: set[asyncio.Task[None]] = set()
        # Not that of who starts a job: the last one's handler may have changed it.
        self._context = copy_context()

    def start(self, leases: Iterable[Lease]) -> None:
        """Run them as soon as the event loop comes to it."""
        self._ready.extend(leases)
        # What the end of a job makes room for is run by the same task.
        if self._launch is None and not self._ending:
            self._next = 1
            self._more()

    def _more(self) -> None:
        self._launch = None
        if not self._ready:
            return
        loop = asyncio.get_running_loop()
        for _ in range(min(self._next, len(self._ready))):
            task = loop.create_task(self._work(), context=self._context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._next *= 2
        self._launch = loop.call_soon(self._more)

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - only run as one
        yielded = monotonic()
        while self._ready:
            lease = self._ready.popleft()
            outcome: Outcome = _NOT_STARTED
            lease.task = task
            try:
                outcome = await self._run(lease)
            finally:
                lease.task = None
                self._ending = True
                try:
                    self._end(lease, outcome)
                finally:
                    self._ending = False
            if task.cancelling() or copy_context() != self._context:
                break
            if monotonic() - yielded > _TURN:
                await asyncio.sleep(0)
                yielded = monotonic()
        if self._ready and self._launch is None:
            self._more()
