"""Reads the queue now and then for gauges, which outcomes cannot give."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Protocol, Self

from holdfast.clock import monotonic
from holdfast.errors import HoldfastError, SchemaMissing
from holdfast.lifecycle import Status
from holdfast.repeated import RepeatedLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from holdfast.events import Telemetry
    from holdfast.models import TableDepth
    from holdfast.ports import Store

logger = logging.getLogger("holdfast.telemetry")

INTERVAL = 15.0
_LONGEST = 300.0
_FIRST = 5.0
_SHARE_OF_TIME = 100


class Counted(Protocol):
    """The tables of a worker: Holdfast's own, where `own` says so, and those of users."""

    @property
    def store(self) -> Store: ...
    @property
    def own(self) -> bool: ...
    async def depths(self) -> Mapping[str, TableDepth]: ...
    def fork(self, purpose: str) -> Self: ...
    async def close(self) -> None: ...


@asynccontextmanager
async def gauging(tables: Counted, telemetry: Telemetry) -> AsyncIterator[None]:
    """Look beside whatever runs inside, on a connection of its own where there is one."""
    own = tables.fork("gauges")
    looking = asyncio.get_running_loop().create_task(watch(own, telemetry))
    try:
        yield
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
        if own is not tables:
            await own.close()


async def watch(tables: Counted, telemetry: Telemetry) -> None:
    """Until cancelled. A look that fails leaves the gauges as they were."""
    trouble = RepeatedLog(logger)
    # Workers that start together have work to find first, and need not all count at once.
    await asyncio.sleep(random.uniform(0, _FIRST))  # noqa: S311
    while True:
        began, seconds = monotonic(), INTERVAL
        try:
            await look(tables, telemetry)
            seconds = pause(monotonic() - began)
        except HoldfastError as error:
            logger.debug("the gauges wait for the database: %s", error)
        except Exception as error:
            # Telemetry is never worth a worker.
            trouble.error("the gauges could not be set: %r", error, exc_info=True)
        await asyncio.sleep(seconds)


def pause(seconds: float, least: float = INTERVAL) -> float:
    """Return the pause after a look that took this many seconds.

    A look counts the whole table, and every worker makes one. Together they must not burden a
    database that is behind with its work.
    """
    return max(least, min(seconds * _SHARE_OF_TIME, _LONGEST))


class Gauged(Protocol):
    """An observer that shows gauges."""

    def gauge(
        self,
        depths: Iterable[tuple[str, str, int]],
        oldest: Mapping[str, float],
        breakers: Mapping[str, str],
    ) -> None: ...


async def look(tables: Counted, telemetry: Gauged) -> None:
    """Depths, ages and breakers as they are now."""
    depths: list[tuple[str, str, int]] = []
    oldest: dict[str, float] = {}
    store = tables.store
    if tables.own:
        now = await store.jobs.now()
        depths += [
            (size.entrypoint, str(size.status), size.count) for size in await store.jobs.size(None)
        ]
        for queue, since in (await store.jobs.oldest()).items():
            oldest[queue] = (now - since).total_seconds()
    for queue, depth in (await tables.depths()).items():
        depths.append((queue, str(Status.QUEUED), depth.waiting))
        depths.append((queue, str(Status.PICKED), depth.claimed))
        if depth.oldest is not None:
            oldest[queue] = depth.oldest.total_seconds()
    telemetry.gauge(depths, oldest, await _breakers(store))


async def _breakers(store: Store) -> dict[str, str]:
    try:
        return {breaker.name: str(breaker.state) for breaker in await store.breakers.all()}
    except SchemaMissing:
        # A worker that only serves tables of users needs no breakers.
        return {}
