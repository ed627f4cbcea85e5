"""The driver over our own connections."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.errors import ConnectionFailed
from holdfast.stores.postgres.drivers.base import LEAST_SECONDS, BaseDriver, Loan
from holdfast.stores.postgres.drivers.connection_lock import AsyncConnectionLock
from holdfast.stores.postgres.drivers.listening import (
    DEAF_SECONDS,
    NOTIFY,
    attend,
    is_pooled,
    receives,
)
from holdfast.stores.postgres.drivers.overseer import Overseer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from holdfast.stores.postgres.drivers.base import Connection, Driver, OnNotify, Row
    from holdfast.stores.postgres.drivers.connections import Connections
    from holdfast.stores.postgres.drivers.pool import ConnectionPool


class Reconnecting(BaseDriver):
    """One purpose of a connection plan. Its calls run one after the other on a pool's connections.

    The calls of one purpose never keep those of another from a pool that has several connections.
    """

    autocommits = True
    reconnects = True

    def __init__(self, plan: Connections, purpose: str, pool: ConnectionPool) -> None:
        super().__init__(timeout=pool.address.timeout, pooler=pool.address.pooler)
        self._plan = plan
        self._purpose = purpose
        self._pool = pool
        self._lock = AsyncConnectionLock()
        self._used: Connection | None = None
        self._closed = False
        self._home: asyncio.AbstractEventLoop | None = None
        """The event loop of its last call."""

    @property
    def dedicated(self) -> bool:
        return self._plan.renews_apart

    @property
    def spare(self) -> bool:
        return self._plan.has_spare

    @property
    def place(self) -> str:
        return str(self._pool.address.target)

    @property
    def plan(self) -> Connections:
        """The plan that names the connections of this driver and its forks."""
        return self._plan

    def fork(self, purpose: str) -> Driver:
        return self if purpose == self._purpose else self._plan.driver(purpose)

    async def fetch(
        self, sql: str, args: Sequence[object] = (), *, timeout: float | None = None
    ) -> Sequence[Row]:
        # Spelled out, because each statement of a worker comes this way: `_lend` takes longer.
        if self._closed or self._home is not asyncio.get_running_loop():
            self._begin()
        loan = await self._pool.take(self._lock, self.timeout if timeout is None else timeout)
        connection = self._used = loan.connection
        failed: BaseException | None = None
        try:
            left = max(loan.deadline - monotonic(), LEAST_SECONDS)
            limit = connection.server_limit
            if self._pooler.snapshots or (limit is not None and left > limit):
                return await self._fetch_bracketed(loan, sql, args)
            return await connection.fetch(sql, args, left)
        except BaseException as error:
            failed = error
            raise
        finally:
            self._used = None
            self._pool.leave(self._lock, connection, failed)

    @asynccontextmanager
    async def _lend(self, seconds: float) -> AsyncIterator[Loan]:
        if self._closed or self._home is not asyncio.get_running_loop():
            self._begin()
        loan = await self._pool.take(self._lock, seconds)
        self._used = loan.connection
        failed: BaseException | None = None
        try:
            yield loan
        except BaseException as error:
            failed = error
            raise
        finally:
            self._used = None
            self._pool.leave(self._lock, loan.connection, failed)

    def _begin(self) -> None:
        """Serve this event loop. Connections of one that has ended are dropped."""
        if self._closed:
            raise ConnectionFailed(
                f"the driver {self._purpose!r} is closed; enter the queue "
                "again with `async with`, or make another driver",
                closed=True,
            )
        loop = asyncio.get_running_loop()
        self._pool.belong_to(loop)
        self._lock, self._home = AsyncConnectionLock(), loop

    def _overseeing(self) -> Overseer | None:
        # Its question needs a second connection.
        return Overseer(lambda: self.fork("overseer")) if self.spare else None

    async def listen(
        self,
        channel: str,
        on_notify: OnNotify,
        on_ready: Callable[[], None],
        *,
        own: str | None = None,
    ) -> None:
        if self._purpose not in ("listen", "results"):
            sibling = self.fork("listen")
            try:
                await sibling.listen(channel, on_notify, on_ready, own=own)
            finally:
                await sibling.close()
            return
        connection = await self._for_listening()
        while self._doubtful and not await self._receives(connection):
            self._plan.warn_deaf()
            if self._pool.purpose == self._purpose:
                await connection.close()
            await asyncio.sleep(DEAF_SECONDS)
            connection = await self._for_listening()
        await attend(
            connection, self._pool.lock, channel, on_notify, on_ready, own=own, restore=False
        )

    @property
    def _doubtful(self) -> bool:
        """Whether notifications may not arrive: there is a pooler, or an address of its own."""
        return self._pooler.seen or self._plan.has_listen_address

    async def _for_listening(self) -> Connection:
        async with self._lend(self.timeout) as loan:
            # With statement_cache_size=0 no pooler was looked for.
            if not self._pooler.seen and await is_pooled(loan):
                self._pooler.notice(self.place)
            return loan.connection

    async def _receives(self, connection: Connection) -> bool:
        if self._pool.purpose != self._purpose:
            # A probe needs a second connection.
            return False
        probe = self.fork("probe")
        try:
            return await receives(
                connection,
                self._pool.lock,
                lambda channel, word: probe.fetch(NOTIFY, (channel, word)),
                self.timeout,
            )
        finally:
            await probe.close()

    async def close(self) -> None:
        # Without the lock: a statement that hangs must not keep the process from ending.
        self._closed = True
        if self._pool.purpose == self._purpose:
            await self._pool.close()
        elif self._used is not None:
            await self._used.close()
