"""Drivers: how statements reach PostgreSQL. `connect` chooses the client library."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from holdfast.errors import InvalidInput, MissingDependency
from holdfast.stores.postgres.drivers.base import (
    DEFAULT_TIMEOUT_SECONDS,
    BaseDriver,
    Driver,
    Row,
    positive,
)
from holdfast.stores.postgres.drivers.connections import DEFAULT_CONNECTIONS, Connections
from holdfast.stores.postgres.drivers.dsn import parse
from holdfast.stores.postgres.drivers.pgbouncer import Pooler
from holdfast.stores.postgres.drivers.pool import DEFAULT_CONNECT_TIMEOUT_SECONDS, Address

if TYPE_CHECKING:
    from typing import Literal

    from holdfast.stores.postgres.drivers.pool import OpenConnection
    from holdfast.stores.postgres.drivers.reconnecting import Reconnecting

__all__ = ["Driver", "Row", "connect", "wrap"]

_LIBRARIES = ("asyncpg", "psycopg")


def connect(
    dsn: str,
    *,
    listen_dsn: str | None = None,
    connections: int = DEFAULT_CONNECTIONS,
    driver: Literal["asyncpg", "psycopg"] | None = None,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
    connect_timeout: float = DEFAULT_CONNECT_TIMEOUT_SECONDS,
    statement_cache_size: int = 100,
) -> Reconnecting:
    """A driver with connections of its own, which it opens on first use."""
    positive("timeout", timeout)
    positive("connect_timeout", connect_timeout)
    library = _load(_choose(driver))

    target = parse(dsn)
    pooler = Pooler(seen=target.pooled)
    address = Address(target, library, pooler, timeout, connect_timeout, statement_cache_size)
    return Connections(address, listen_dsn, connections).driver("main")


def _load(library: str) -> OpenConnection:
    # On demand, because no program needs both client libraries.
    if library == "asyncpg":
        from holdfast.stores.postgres.drivers.asyncpg import open_connection as open_asyncpg

        return open_asyncpg
    from holdfast.stores.postgres.drivers.psycopg import open_connection as open_psycopg

    return open_psycopg


def _choose(driver: str | None) -> str:
    if driver is not None and driver not in _LIBRARIES:
        raise InvalidInput(f"driver must be 'asyncpg' or 'psycopg', got {driver!r}")
    for library in _LIBRARIES if driver is None else (driver,):
        if find_spec(library) is not None:
            return library
    wanted = driver or "asyncpg"
    raise MissingDependency(
        f"PostgreSQL needs {driver or 'asyncpg or psycopg'}, which is not installed; "
        f"run: pip install 'holdfast[{wanted}]'"
    )


def wrap(connection: object) -> Driver:
    """A driver over a connection or pool of the caller's, whichever library it is of."""
    if isinstance(connection, BaseDriver):
        return connection
    # By name, subclasses included, so that neither library is imported for the other's sake.
    origins = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
    driver = None
    if "asyncpg" in origins:
        driver = _wrap_asyncpg(connection)
    elif "psycopg" in origins:
        driver = _wrap_psycopg(connection)
    if driver is None:
        # Only its type: a DSN in the wrong place has a password in it.
        raise InvalidInput(
            "expected a connection of asyncpg or psycopg, a pool of asyncpg or a Holdfast driver, "
            f"got {type(connection).__name__}"
        )
    return driver


def _wrap_asyncpg(connection: object) -> Driver | None:
    from asyncpg import Connection
    from asyncpg.pool import Pool, PoolConnectionProxy

    from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver, AsyncpgPoolDriver

    if isinstance(connection, Pool):
        return AsyncpgPoolDriver(connection)
    single = isinstance(connection, (Connection, PoolConnectionProxy))
    return AsyncpgDriver(connection) if single else None


def _wrap_psycopg(connection: object) -> Driver | None:
    from psycopg import AsyncConnection, Connection

    from holdfast.stores.postgres.drivers.psycopg import PsycopgDriver, SyncPsycopgDriver

    if isinstance(connection, AsyncConnection):
        return PsycopgDriver(connection)
    return SyncPsycopgDriver(connection) if isinstance(connection, Connection) else None
