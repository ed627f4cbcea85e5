"""Carriers over SQLAlchemy: sessions and connections, async and sync.

SQLAlchemy opens the transaction of asyncpg only with the first statement that goes through it, and
ends only a transaction that it knows of. So a statement of SQLAlchemy's own goes first, and ours
follow on the connection that it has.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, InvalidRequestError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import scoped_session, sessionmaker

from holdfast.errors import CarrierError, InvalidInput
from holdfast.stores.postgres.carriers.connections import session_over
from holdfast.stores.postgres.carriers.joining import BUSY, JoinedDriver, in_use
from holdfast.stores.postgres.drivers.error_mapping import lost
from holdfast.stores.postgres.job_transaction import ENDED_EARLY

if TYPE_CHECKING:
    from holdfast.stores.postgres.carriers.home import Home
    from holdfast.stores.postgres.carriers.joining import Carrier
    from holdfast.stores.postgres.drivers.base import Connection as DriverConnection
    from holdfast.stores.postgres.drivers.base import Driver

_BEGIN = "select"
_DRIVERS = "asyncpg, psycopg or psycopg2"


def carrier_of(transaction: Any) -> Carrier | None:
    """None for an engine, a sessionmaker and whatever else has no transaction."""
    if isinstance(transaction, (scoped_session, async_scoped_session)):
        transaction = transaction()
    if isinstance(transaction, (AsyncSession, AsyncConnection)):
        return AsyncCarrier(transaction)
    if isinstance(transaction, (OrmSession, Connection)):
        return SyncCarrier(transaction)
    return None


def is_async(target: object) -> bool:
    """Return whether its transactions are awaited. InvalidInput where it makes none."""
    if isinstance(target, (AsyncEngine, async_sessionmaker)):
        return True
    if isinstance(target, (Engine, sessionmaker)):
        return False
    raise InvalidInput(
        "ctx.transaction() takes an AsyncEngine, Engine, async_sessionmaker or sessionmaker of "
        f"SQLAlchemy, or nothing; got a {type(target).__name__}"
    )


class SqlalchemyTransaction:
    """A session or connection of its own, with its transaction, for one handler."""

    def __init__(self, connection: Any, transaction: Any, home: Home | None) -> None:
        self.connection = connection
        self._transaction = transaction
        carrier = carrier_of(connection)
        assert carrier is not None  # noqa: S101 - is_async() has seen to that
        self.driver: Driver = JoinedDriver(carrier, home)

    @classmethod
    async def begin(cls, target: Any, home: Home | None) -> SqlalchemyTransaction:
        makes_sessions = isinstance(target, (async_sessionmaker, sessionmaker))
        connection = target() if makes_sessions else await _awaited(target.connect())
        try:
            return cls(connection, await _awaited(connection.begin()), home)
        except BaseException:
            await _awaited(connection.close())
            raise

    def check(self) -> None:
        if not self._transaction.is_active:
            raise CarrierError(ENDED_EARLY)

    async def commit(self) -> None:
        try:
            await _awaited(self._transaction.commit())
        except DBAPIError as error:
            if error.connection_invalidated:
                raise lost(str(error.orig)) from error
            raise
        await _awaited(self.connection.close())

    async def rollback(self) -> None:
        # Closing rolls back, whatever has become of the transaction.
        await _awaited(self.connection.close())


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class _Carrier:
    """The common part of both kinds: the session over the connection that SQLAlchemy has now."""

    begin_with = 'an engine without isolation_level="AUTOCOMMIT"'

    def __init__(self, transaction: Any) -> None:
        self.what = f"the {type(transaction).__name__} of SQLAlchemy"
        self.owner = self._transaction = transaction
        self._raw: object = None
        self._session: DriverConnection | None = None

    def _over(self, raw: object) -> DriverConnection:
        if self._session is None or raw is not self._raw:
            found = session_over(raw)
            if found is None:
                raise self._unknown(type(raw).__module__)
            self._raw, self._session = raw, found.session
        return self._session

    def _check(self, dialect: Any) -> None:
        if dialect.name != "postgresql":
            raise self._unknown(dialect.name)

    def _unknown(self, found: str) -> CarrierError:
        return CarrierError(
            f"{self.what} is connected through {found}; Holdfast joins PostgreSQL through "
            f"{_DRIVERS}"
        )

    def _refused(self, error: InvalidRequestError | InterfaceError) -> CarrierError:
        if BUSY in str(error):
            return in_use(self.what)
        reason = str(error).partition("\n")[0]
        return CarrierError(f"{self.what} cannot be joined: {reason}")


class AsyncCarrier(_Carrier):
    """An AsyncSession or AsyncConnection."""

    synchronous = False
    _transaction: AsyncSession | AsyncConnection

    async def session(self, *, begin: bool) -> DriverConnection:
        try:
            found = self._transaction
            connection = await found.connection() if isinstance(found, AsyncSession) else found
            self._check(connection.dialect)
            raw = (await connection.get_raw_connection()).driver_connection
            session = self._over(raw)
            if begin and not (connection.in_transaction() and session.in_transaction):
                await connection.exec_driver_sql(_BEGIN)
        except InvalidRequestError as error:
            raise self._refused(error) from error
        except InterfaceError as error:
            if BUSY in str(error):
                raise self._refused(error) from error
            raise
        return session


class SyncCarrier(_Carrier):
    """A Session or Connection."""

    synchronous = True
    _transaction: OrmSession | Connection

    async def session(self, *, begin: bool) -> DriverConnection:
        try:
            found = self._transaction
            connection = found.connection() if isinstance(found, OrmSession) else found
            self._check(connection.dialect)
            if connection.dialect.is_async:
                raise CarrierError(
                    f"{self.what} belongs to an async engine; pass the AsyncSession or "
                    "AsyncConnection around it, outside run_sync()"
                )
            session = self._over(connection.connection.driver_connection)
            if begin and not (connection.in_transaction() and session.in_transaction):
                connection.exec_driver_sql(_BEGIN)
        except InvalidRequestError as error:
            raise self._refused(error) from error
        return session
