"""Handlers' transactions in PostgreSQL: on a connection of their own, or on SQLAlchemy's."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import CarrierError, HoldfastError, InvalidInput
from holdfast.stores.postgres.carriers.home import Home
from holdfast.stores.postgres.drivers.base import (
    DEFAULT_TIMEOUT_SECONDS as TIMEOUT,
)
from holdfast.stores.postgres.drivers.base import (
    BaseDriver,
    SingleDriver,
)
from holdfast.stores.postgres.drivers.reconnecting import Reconnecting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from holdfast.lifecycle import Transition
    from holdfast.models import Change, LeaseKey
    from holdfast.ports import Leases
    from holdfast.stores.postgres.drivers.base import Connection, Driver
    from holdfast.stores.postgres.drivers.connections import Connections

ENDED_EARLY = (
    "the transaction of ctx.transaction() was ended inside its block, so what was committed there "
    "and the end of the job are two commits; leave commit and rollback to the block"
)

_USUAL_SETTINGS = (
    "set local statement_timeout to default; set local lock_timeout to default; "
    "set local jit to default"
)
"""The settings of our own sessions are for our own statements."""


class Opened(Protocol):
    """A transaction that was begun for a handler."""

    connection: object
    """The object that the handler writes through."""
    driver: Driver
    """For our own statements in it."""

    def check(self) -> None:
        """CarrierError where the handler has ended the transaction by itself."""
        ...

    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


class HandlerConnections:
    """Connections for the handlers of one worker, opened when they are used for the first time."""

    def __init__(self, driver: Driver, table: str | None = None) -> None:
        self._driver = driver
        self.home = None if table is None else Home(driver, table)
        """Refuses an engine of another database. None for a table of the user's own."""
        self._places = asyncio.Condition()
        self._idle: list[BaseDriver] = []
        self._busy: list[BaseDriver] = []

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[Connection]:
        """A connection for one transaction."""
        driver = self._driver
        if isinstance(driver, BaseDriver) and driver.concurrent:
            async with driver._lend(driver.timeout) as loan:
                yield loan.connection
            return
        if not isinstance(driver, Reconnecting):
            raise InvalidInput(
                "ctx.transaction() needs a connection beside the worker's; use "
                "Holdfast.connect(dsn) or a pool, or pass an engine or a sessionmaker"
            )
        async with self._place(driver.plan):
            sibling = self._idle.pop() if self._idle else self._fork()
            self._busy.append(sibling)
            try:
                async with sibling._lend(sibling.timeout) as loan:
                    yield loan.connection
            finally:
                self._busy.remove(sibling)
                self._idle.append(sibling)

    @asynccontextmanager
    async def _place(self, plan: Connections) -> AsyncIterator[None]:
        """Wait until one more handler may have a connection of the plan."""
        if plan.handler_places < 1:
            raise InvalidInput(
                f"ctx.transaction() needs at least 4 connections, and this worker has {plan.most}; "
                "raise `connections` (`--connections`), or pass an engine or a sessionmaker"
            )
        async with self._places:
            await self._places.wait_for(lambda: plan.handlers < plan.handler_places)
            plan.handlers += 1
        try:
            yield
        finally:
            plan.handlers -= 1
            async with self._places:
                self._places.notify()

    def _fork(self) -> BaseDriver:
        sibling = self._driver.fork("handler")
        assert isinstance(sibling, BaseDriver)  # noqa: S101 - what is dedicated lends
        return sibling

    async def close(self) -> None:
        await asyncio.gather(*(sibling.close() for sibling in (*self._idle, *self._busy)))


class PostgresJobTransaction:
    """A handler's transaction, as the worker uses it."""

    def __init__(
        self,
        connections: HandlerConnections,
        target: object,
        leases_over: Callable[[Driver], Leases],
    ) -> None:
        self._connections = connections
        self._target = target
        self._leases_over = leases_over
        self._stack = AsyncExitStack()
        self._opened: Opened
        self._over = False

    @property
    def synchronous(self) -> bool:
        if self._target is None:
            return False
        from holdfast.stores.postgres.carriers.sqlalchemy import is_async

        return not is_async(self._target)

    async def open(self) -> object:
        if self._target is None:
            session = await self._stack.enter_async_context(self._connections.lent())
            try:
                self._opened = await _begin(session)
            except BaseException as error:
                session.drop()
                await self._stack.__aexit__(type(error), error, None)
                raise
        else:
            from holdfast.stores.postgres.carriers.sqlalchemy import SqlalchemyTransaction

            self._opened = await SqlalchemyTransaction.begin(self._target, self._connections.home)
        return self._opened.connection

    async def change(self, transition: Transition, changes: Sequence[Change]) -> list[LeaseKey]:
        self._opened.check()
        # Behind a savepoint, so that a row which is locked for a moment can be tried again.
        async with self._opened.driver.transaction() as inside:
            return await self._leases_over(inside).change(transition, changes)

    async def commit(self) -> None:
        await self._opened.commit()
        await self._end()

    async def rollback(self) -> None:
        if self._over:
            return
        try:
            with suppress(HoldfastError):
                await self._opened.rollback()
        finally:
            await self._end()

    async def _end(self) -> None:
        self._over = True
        await self._stack.aclose()


async def _begin(session: Connection) -> Opened:
    from holdfast.stores.postgres.drivers.asyncpg import AsyncpgConnection

    if isinstance(session, AsyncpgConnection):
        opened: AsyncpgTransaction | PsycopgTransaction = AsyncpgTransaction(session)
    else:
        opened = PsycopgTransaction(session)
    await opened.begin()
    await session.script(_USUAL_SETTINGS, TIMEOUT)
    return opened


class AsyncpgTransaction:
    """A transaction of asyncpg's own, so that the handler may nest further ones in it."""

    def __init__(self, session: Any) -> None:
        from asyncpg.pool import PoolConnectionProxy

        self._session = session
        raw = session._connection
        self._ours = not isinstance(raw, PoolConnectionProxy)
        # A proxy refuses to be used when the transaction is over and the connection another's.
        self.connection: Any = PoolConnectionProxy(None, raw) if self._ours else raw
        self._transaction = raw.transaction(isolation="read_committed")
        self.driver: Driver = SingleDriver(session)

    async def begin(self) -> None:
        async with self._session.bounded(TIMEOUT):
            await self._transaction.start()

    def check(self) -> None:
        if not self._session.in_transaction:
            raise CarrierError(ENDED_EARLY)

    async def commit(self) -> None:
        try:
            async with self._session.bounded(TIMEOUT):
                await self._transaction.commit()
        finally:
            self._detach()

    async def rollback(self) -> None:
        try:
            async with self._session.bounded(TIMEOUT):
                await self._transaction.rollback()
        except BaseException:
            self._session.drop()
            raise
        finally:
            self._detach()

    def _detach(self) -> None:
        if self._ours:
            self.connection._detach()


class PsycopgTransaction:
    """A transaction of psycopg's own, in which commit() and rollback() are refused."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.connection: Any = session._connection
        self._transaction = self.connection.transaction()
        self.driver: Driver = SingleDriver(session)

    async def begin(self) -> None:
        await self._session._bounded(self._transaction.__aenter__(), TIMEOUT)
        await self._session.command("set transaction isolation level read committed", TIMEOUT)

    def check(self) -> None:
        if not self._session.in_transaction:
            raise CarrierError(ENDED_EARLY)

    async def commit(self) -> None:
        await self._session._bounded(self._transaction.__aexit__(None, None, None), TIMEOUT)

    async def rollback(self) -> None:
        undone = _Undone()
        try:
            leave = self._transaction.__aexit__(_Undone, undone, None)
            await self._session._bounded(leave, TIMEOUT)
        except BaseException:
            self._session.drop()
            raise


class _Undone(Exception):
    """Tells psycopg to roll back."""
