"""Questions and requests about one worker, from another thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from holdfast.app import Holdfast
from holdfast.clock import monotonic
from holdfast.errors import DatabaseError, HoldfastError
from holdfast.models import ClaimRule
from holdfast.service.stop import end_blocked
from holdfast.settings import WorkerSettings
from holdfast.telemetry.gauges import look, pause
from holdfast.telemetry.prometheus import WORKERS, Metrics, Sample
from holdfast.worker.quarantine import Suspects
from holdfast.worker.sources import Sources

logger = logging.getLogger("holdfast.run")

T = TypeVar("T")

_LIVE_SECONDS = 30.0
_READY_SECONDS = 2.0
_START_SECONDS = 0.25
# A count of the whole table, so not at every scrape.
_LOOK_SECONDS = 10.0
_BATCH = 1000
# The dead worker's last claim may still be on its way through the server when its death is known.
_RELEASE_AT = (0.0, 0.3, 1.0, 2.0)
_LEASE = timedelta(seconds=30)
_SPARE_SHARE = 0.25
"""Of the server's connections. While fewer are free, no further quarantine process is started."""


class WorkerProbe:
    """Made in the worker's event loop, used in another one."""

    def __init__(self, holdfast: Holdfast, settings: WorkerSettings) -> None:
        self.manager = holdfast.queue_manager
        names = [entrypoint.name for entrypoint in self.manager.entrypoints]
        self.metrics = Metrics(names, lambda: self.manager.running)
        self._settings = settings
        self._look_at = 0.0
        self.sources = holdfast.sources()
        self._home = asyncio.get_running_loop()
        self._shared = self.sources.fork("gauges")
        self.max_loop_block = settings.max_loop_block

    async def watch(self) -> None:
        """Watch the worker's event loop where only one connection is: no thread renews leases."""
        if self.sources.dedicated:
            return
        while (watchdog := self.manager.watchdog) is None:  # noqa: ASYNC110 - the other loop sets it
            await asyncio.sleep(_START_SECONDS)
        # The loop is gone when the worker has ended.
        if (blocked := await watchdog.run()) is not None:
            end_blocked(str(blocked))

    @property
    def _lag(self) -> float:
        """Seconds for which the event loop has not answered."""
        watchdog = self.manager.watchdog
        return 0.0 if watchdog is None else watchdog.lag

    @property
    def _blocked(self) -> bool:
        watchdog = self.manager.watchdog
        return watchdog is not None and watchdog.blocked

    async def live(self) -> str | None:
        """A worker lives while it claims, or while it has no room for more and its loop runs."""
        if self.manager.blocked is not None:
            return self.manager.blocked
        limit = max(_LIVE_SECONDS, 3 * self._settings.dequeue_timeout.total_seconds())
        if self._lag > limit:
            return f"the event loop has been blocked for {self._lag:.0f} s"
        silent = self.manager.seconds_since_claim
        full = self.manager.running >= self._settings.concurrency
        if self.manager.state != "running" or full or silent <= limit:
            return None
        return f"no claim has been answered for {silent:.0f} s"

    async def ready(self) -> str | None:
        if self.manager.state != "running":
            return f"the worker is {self.manager.state}"
        if self._blocked:
            return f"the event loop has been blocked for {self._lag:.0f} s"
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await self._ask(lambda sources: sources.store.jobs.now())
        except (DatabaseError, TimeoutError):
            return "the database does not answer"
        return None

    async def has_room(self) -> bool:
        """Whether the server has connections to spare for one more process."""
        try:
            async with asyncio.timeout(_READY_SECONDS):
                free = await self._ask(lambda sources: sources.store.upkeep.free_connections())
        except (HoldfastError, TimeoutError):
            return False
        return free >= _SPARE_SHARE

    async def samples(self) -> list[Sample]:
        if (began := monotonic()) >= self._look_at:
            self._look_at = began + _LOOK_SECONDS
            with suppress(HoldfastError, TimeoutError):
                async with asyncio.timeout(_READY_SECONDS):
                    await self._ask(lambda sources: look(sources, self.metrics))
                self._look_at = began + pause(monotonic() - began, _LOOK_SECONDS)
        samples = self.metrics.samples()
        if self.manager.suspects is Suspects.only:
            # A quarantine process does not count among the workers that were asked for.
            return [sample for sample in samples if sample.name != WORKERS]
        return samples

    def treat_suspects(self, suspects: Suspects) -> None:
        """Have the worker run suspects, or leave them to another process."""
        self._home.call_soon_threadsafe(self.manager.treat_suspects, suspects)

    async def release(self, worker: str, caps: Mapping[str, int]) -> None:
        """Recover the jobs of a worker that is known to be dead."""
        rules = [ClaimRule(name, _LEASE, max_recoveries=cap) for name, cap in caps.items()]
        began = asyncio.get_running_loop().time()
        for at in _RELEASE_AT:
            await asyncio.sleep(began + at - asyncio.get_running_loop().time())
            with suppress(DatabaseError):
                await self._recover(worker, rules)
        await self._ask(lambda sources: _sign_off(sources, worker))

    async def _recover(self, worker: str, rules: list[ClaimRule]) -> None:
        while True:
            # The dead worker's connections are free, and this worker's loop may be blocked.
            ask = self._ask_apart if self.sources.dedicated else self._ask
            found = await ask(lambda sources: sources.recover(rules, limit=_BATCH, worker=worker))
            if found.recovered:
                logger.warning("took back %d jobs of %s", len(found.recovered), worker)
            if found.retired:
                logger.error("held as crash loops: jobs %s", list(found.retired))
            if found.recovered or found.retired:
                self._home.call_soon_threadsafe(self.manager.look_for_recovered)
            if len(found.recovered) + len(found.retired) < _BATCH:
                return

    async def _ask(self, ask: Callable[[Sources], Coroutine[Any, Any, T]]) -> T:
        """Ask in the worker's event loop, or on another connection while the loop is blocked."""
        if self.sources.dedicated and self._blocked:
            return await self._ask_apart(ask)
        waiting = asyncio.run_coroutine_threadsafe(ask(self._shared), self._home)
        return await asyncio.wrap_future(waiting)

    async def _ask_apart(self, ask: Callable[[Sources], Coroutine[Any, Any, T]]) -> T:
        apart = self.sources.fork("side")
        try:
            return await ask(apart)
        finally:
            with suppress(DatabaseError):
                await apart.close()

    async def close(self) -> None:
        if self.sources.dedicated:
            closing = asyncio.run_coroutine_threadsafe(self._shared.close(), self._home)
            with suppress(DatabaseError):
                await asyncio.wrap_future(closing)


async def _sign_off(sources: Sources, worker: str) -> None:
    if sources.reports is not None:
        await sources.reports.sign_off(worker)
