"""Runs leases: one job, one task, with a context of its own.

Nothing that a handler leaves behind, a timer that cancels its task or a context variable, reaches
another job. Tasks are started in slices, so that jobs that never wait do not keep other tasks of
the event loop back.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from holdfast.clock import monotonic
from holdfast.models import NOT_STARTED, LargePayload, Outcome, Released
from holdfast.worker.run import Services, fetch_payload, run

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from holdfast.worker.dispatcher import Dispatcher
    from holdfast.worker.payloads import PayloadFetcher
    from holdfast.worker.progress import ProgressWriter
    from holdfast.worker.settle import Settler
    from holdfast.worker.sources import Sources

_NOT_STARTED = Released(NOT_STARTED)
_SLICE_SECONDS = 0.01
"""Tasks that start in one iteration of the event loop should take about this long together."""

_SMALLEST_SLICE = 8
_LARGEST_SLICE = 512


class TaskPool:
    """Takes leases from the dispatcher, runs each in a task, and gives outcomes to the settler."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        settler: Settler,
        sources: Sources,
        progress: ProgressWriter,
        payloads: PayloadFetcher,
        resources: MutableMapping[Any, Any],
    ) -> None:
        self._dispatcher = dispatcher
        self._settler = settler
        self._services = Services(sources, progress)
        self._payloads = payloads
        self._resources = resources
        self._running: set[asyncio.Task[None]] = set()
        # Finding out the running loop asks the system for the process id, and is as slow.
        self._loop = asyncio.get_running_loop()
        # The caller's context may be the one of the handler that has just ended.
        self._context = copy_context()
        self.rounds = 0
        """How many slices of tasks were started."""

    def __len__(self) -> int:
        """Return how many handlers run."""
        return len(self._running)

    async def run(self) -> None:
        """Start a task for each lease that may start, until cancelled."""
        loop = self._loop
        size = _SMALLEST_SLICE
        while True:
            count = await self._dispatcher.startable()
            began = monotonic()
            for _ in range(min(size, count)):
                # The loop holds the task until it starts, and _running from then on.
                loop.create_task(self._work(), context=self._context.copy())
            # Afterwards they have taken their leases, and how long they took is known.
            await asyncio.sleep(0)
            slow = monotonic() - began > _SLICE_SECONDS
            size = max(_SMALLEST_SLICE, size // 2) if slow else min(2 * size, _LARGEST_SLICE)
            self.rounds += 1

    async def _work(self) -> None:
        # A lease is taken by its task: one that is cancelled before it starts leaves its lease to
        # another.
        lease = self._dispatcher.next()
        if lease is None:
            return
        outcome: Outcome = _NOT_STARTED
        lease.task = task = asyncio.current_task(self._loop)
        assert task is not None  # noqa: S101 - it is only run as one
        self._running.add(task)
        try:
            missing = None
            if type(lease.job.payload) is LargePayload:
                missing = await fetch_payload(lease, self._payloads)
            outcome = missing or await run(self._resources, lease, self._services)
        finally:
            lease.task = None
            self._running.discard(task)
            self._settler.put(lease, outcome)
            self._dispatcher.done(lease)
