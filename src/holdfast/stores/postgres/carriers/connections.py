"""Carriers over bare connections: asyncpg, psycopg and psycopg2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from holdfast.stores.postgres.carriers.joining import Carrier
    from holdfast.stores.postgres.drivers.base import Connection

_PATIENCE_SECONDS = 5.0
"""For a statement that only begins a transaction."""


class Raw(NamedTuple):
    """A client library's connection as our drivers see it."""

    session: Connection
    library: str
    synchronous: bool = False


class ConnectionCarrier:
    """A connection of a client library."""

    def __init__(self, connection: Any, raw: Raw) -> None:
        self.owner = connection
        self.what = f"the {raw.library} connection"
        self.synchronous = raw.synchronous
        self.begin_with = _BEGIN_WITH[raw.library, raw.synchronous]
        self._session = raw.session
        self._implicit = raw.library != "asyncpg"
        self._connection = connection

    async def session(self, *, begin: bool) -> Connection:
        if begin and self._implicit and not self._connection.autocommit:
            await begin_implicitly(self._session)
        return self._session


_BEGIN_WITH = {
    ("asyncpg", False): "async with connection.transaction():",
    ("psycopg", False): "async with connection.transaction():",
    ("psycopg", True): "with connection.transaction():",
    ("psycopg2", True): "connection.autocommit = False",
}


def carrier_of(connection: object) -> Carrier | None:
    """None where it is not a connection, or of no library that Holdfast knows."""
    raw = session_over(connection)
    return None if raw is None else ConnectionCarrier(connection, raw)


def session_over(connection: Any) -> Raw | None:
    """The session of our drivers over a client library's connection."""
    libraries = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
    if "asyncpg" in libraries:
        from asyncpg import Connection
        from asyncpg.pool import PoolConnectionProxy

        from holdfast.stores.postgres.drivers.asyncpg import AsyncpgConnection

        fits = isinstance(connection, (Connection, PoolConnectionProxy))
        return Raw(AsyncpgConnection(connection), "asyncpg") if fits else None
    if "psycopg" in libraries:
        return _over_psycopg(connection)
    if "psycopg2" in libraries:
        from psycopg2.extensions import connection as connection_type

        from holdfast.stores.postgres.carriers.psycopg2 import Psycopg2Connection

        fits = isinstance(connection, connection_type)
        return Raw(Psycopg2Connection(connection), "psycopg2", synchronous=True) if fits else None
    return None


def _over_psycopg(connection: object) -> Raw | None:
    from psycopg import AsyncConnection, Connection

    from holdfast.stores.postgres.drivers.psycopg import PsycopgConnection
    from holdfast.stores.postgres.drivers.psycopg_sync import SyncPsycopgConnection

    if isinstance(connection, AsyncConnection):
        return Raw(PsycopgConnection(connection), "psycopg")
    if isinstance(connection, Connection):
        return Raw(SyncPsycopgConnection(connection), "psycopg", synchronous=True)
    return None


async def begin_implicitly(session: Connection) -> None:
    """Outside autocommit the first statement begins the transaction, and the caller's commit()
    ends it. Our drivers would otherwise commit what they begin."""
    if not session.closed and not session.in_transaction:
        await session.command("select", _PATIENCE_SECONDS)
