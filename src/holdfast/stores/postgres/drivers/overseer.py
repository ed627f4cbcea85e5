"""Bounds long statements: they may take their time, but only while the server is at work on
them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from holdfast.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from holdfast.stores.postgres.drivers.base import Connection, Driver

T = TypeVar("T")

CHECK_SECONDS = 3.0
_AT_WORK = "select count(*) from pg_stat_activity where pid = $1 and state = 'active'"


class Overseer:
    """Asks through another connection whether a statement without an answer is still run.

    No deadline could distinguish a migration of a large table from a network that has failed.
    """

    def __init__(self, sibling: Callable[[], Driver]) -> None:
        self._sibling = sibling

    async def over(self, connection: Connection, work: Coroutine[Any, Any, T]) -> T:
        """The work's result; ConnectionLost when the server knows nothing of it."""
        task = asyncio.ensure_future(work)
        try:
            done, _ = await asyncio.wait({task}, timeout=CHECK_SECONDS)
            if not done:
                await self._watch(connection, task)
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def _watch(self, connection: Connection, task: asyncio.Future[T]) -> None:
        witness = self._sibling()
        try:
            while not task.done():
                if not await self._at_work(witness, connection.pid):
                    # Unless it has just ended, and its answer is on the way.
                    await asyncio.wait({task}, timeout=1.0)
                    if not task.done():
                        connection.drop()
                    return
                await asyncio.wait({task}, timeout=CHECK_SECONDS)
        finally:
            await witness.close()

    async def _at_work(self, witness: Driver, pid: int) -> bool:
        try:
            [[found]] = await witness.fetch(_AT_WORK, [pid], timeout=CHECK_SECONDS)
        except DatabaseError:
            return False
        return bool(found)
