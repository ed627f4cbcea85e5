"""What can be asked about one worker, and done for it, from another thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from holdfast.app import Holdfast
from holdfast.cli.pulse import Pulse
from holdfast.clock import monotonic
from holdfast.errors import DatabaseError, HoldfastError
from holdfast.models import Want
from holdfast.ports import Store
from holdfast.settings import WorkerSettings
from holdfast.telemetry.gauges import look, pause
from holdfast.telemetry.prometheus import Metrics, Sample

logger = logging.getLogger("holdfast.run")

T = TypeVar("T")

_LIVE_SECONDS = 30.0
_READY_SECONDS = 2.0
# A count of the whole table, so not at every scrape.
_LOOK_SECONDS = 10.0
_BATCH = 1000
# The dead worker's last claim may still be on its way through the server when its death is known.
_RELEASE_AT = (0.0, 0.3, 1.0, 2.0)
_LEASE = timedelta(seconds=30)


class WorkerProbe:
    """Made in the worker's event loop, used in another one."""

    def __init__(self, holdfast: Holdfast, settings: WorkerSettings) -> None:
        self.manager = holdfast.queue_manager
        names = [entrypoint.name for entrypoint in self.manager.entrypoints]
        self.metrics = Metrics(names, lambda: self.manager.running)
        self._settings = settings
        self._look_at = 0.0
        self.store = holdfast.work_store()
        self._home = asyncio.get_running_loop()
        self._own: Store | None = None
        self.pulse = Pulse(self._home, threading.current_thread())

    async def live(self) -> str | None:
        """A worker lives while it claims, or while it has no room for more and its loop runs."""
        limit = max(_LIVE_SECONDS, 3 * self._settings.dequeue_timeout.total_seconds())
        if self.pulse.lag > limit:
            return f"the event loop has been blocked for {self.pulse.lag:.0f} s"
        silent = self.manager.seconds_since_claim
        full = self.manager.running >= self._settings.concurrency
        if self.manager.state != "running" or full or silent <= limit:
            return None
        return f"no claim has been answered for {silent:.0f} s"

    async def ready(self) -> str | None:
        if self.manager.state != "running":
            return f"the worker is {self.manager.state}"
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await self._ask(lambda store: store.jobs.now())
        except (DatabaseError, TimeoutError):
            return "the database does not answer"
        return None

    async def samples(self) -> list[Sample]:
        if (began := monotonic()) >= self._look_at:
            self._look_at = began + _LOOK_SECONDS
            with suppress(HoldfastError, TimeoutError):
                async with asyncio.timeout(_READY_SECONDS):
                    await self._ask(lambda store: look(store, self.metrics))
                self._look_at = began + pause(monotonic() - began, _LOOK_SECONDS)
        return self.metrics.samples()

    async def release(self, worker: str, caps: Mapping[str, int]) -> None:
        """Take back the jobs of a worker that is known to be dead."""
        wants = [Want(name, _LEASE, max_recoveries=cap) for name, cap in caps.items()]
        began = asyncio.get_running_loop().time()
        for at in _RELEASE_AT:
            await asyncio.sleep(began + at - asyncio.get_running_loop().time())
            with suppress(DatabaseError):
                await self._recover(worker, wants)
        await self._ask(lambda store: store.leases.farewell(worker))

    async def _recover(self, worker: str, wants: list[Want]) -> None:
        while True:
            found = await self._ask(
                lambda store: store.leases.recover(wants, limit=_BATCH, worker=worker)
            )
            if found.recovered:
                logger.warning("took back %d jobs of %s", len(found.recovered), worker)
            if found.retired:
                logger.error("held as crash loops: jobs %s", list(found.retired))
            if len(found.recovered) + len(found.retired) < _BATCH:
                return

    async def _ask(self, ask: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        """On a connection of our own; where there is only one, in the worker's event loop."""
        if not self.store.dedicated:
            waiting = asyncio.run_coroutine_threadsafe(ask(self.store), self._home)
            return await asyncio.wrap_future(waiting)
        if self._own is None:
            self._own = self.store.fork("side")
        return await ask(self._own)

    async def close(self) -> None:
        if self._own is not None:
            with suppress(DatabaseError):
                await self._own.close()
