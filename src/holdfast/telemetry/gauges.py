"""Looks at the queue now and then for gauges: what an outcome cannot tell."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from holdfast.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from holdfast.events import Telemetry
    from holdfast.ports import Store

logger = logging.getLogger("holdfast.telemetry")

INTERVAL = 15.0


@asynccontextmanager
async def gauging(store: Store, telemetry: Telemetry) -> AsyncIterator[None]:
    """Look beside whatever runs inside, on a connection of its own where there is one."""
    own = store.fork("gauges")
    looking = asyncio.get_running_loop().create_task(watch(own, telemetry))
    try:
        yield
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
        if own is not store:
            await own.close()


async def watch(store: Store, telemetry: Telemetry) -> None:
    """Until cancelled. A database that is away leaves the gauges as they were."""
    while True:
        try:
            await look(store, telemetry)
        except DatabaseError as error:
            logger.debug("the gauges wait for the database: %s", error)
        await asyncio.sleep(INTERVAL)


class Gauged(Protocol):
    """Whoever shows gauges."""

    def gauge(
        self,
        depths: Iterable[tuple[str, str, int]],
        oldest: Mapping[str, float],
        breakers: Mapping[str, str],
    ) -> None: ...


async def look(store: Store, telemetry: Gauged) -> None:
    """Depths, ages and breakers as they are now."""
    now = await store.jobs.now()
    sizes = await store.jobs.size(None)
    oldest = await store.jobs.oldest()
    breakers = await store.breakers.all()
    telemetry.gauge(
        [(size.entrypoint, str(size.status), size.count) for size in sizes],
        {queue: (now - since).total_seconds() for queue, since in oldest.items()},
        {breaker.name: str(breaker.state) for breaker in breakers},
    )
