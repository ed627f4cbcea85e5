"""The stores under test: one in memory, and the same tables through every driver and server."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING

import asyncpg
import psycopg

from holdfast.settings import Names
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres.binding import Binding
from holdfast.stores.postgres.drivers import connect
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver, AsyncpgPoolDriver
from holdfast.stores.postgres.drivers.psycopg import PsycopgDriver, SyncPsycopgDriver
from holdfast.stores.postgres.grants import DatabaseRole
from holdfast.stores.postgres.store import PostgresStore
from tests import servers
from tests.security.roles import granted
from tests.security.split import RolesStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from holdfast.clock import Clock
    from holdfast.ports import Store
    from holdfast.stores.postgres.drivers.base import Driver
    from tests.security.roles import Roles
    from tests.servers import Database, SharedServers

MEMORY = "memory"
KINDS = ("asyncpg", "asyncpg_pool", "psycopg", "asyncpg_dsn", "psycopg_dsn")
SERVERS = sorted(servers.available())
ROLES = "roles"


def _chosen(kinds: Sequence[str], usual: Sequence[str]) -> list[str]:
    """Every kind on every server in `make test-all`, otherwise the usual kinds by turns."""
    if servers.ALL:
        return [f"{kind}-{server}" for server in SERVERS for kind in kinds]
    # The newest first, so that the first kind meets it also where it is the only one.
    return [f"{kind}-{server}" for kind, server in zip(usual, cycle(SERVERS[::-1]), strict=False)]


DATABASES = _chosen(KINDS, ("asyncpg_dsn", "psycopg_dsn"))
EVERYWHERE = [MEMORY, *DATABASES, f"{ROLES}-{servers.EMBEDDED}"]
SYNCHRONOUS = [MEMORY, *_chosen(("sync", "sync_manual"), ("sync", "sync_manual"))]


@dataclass(frozen=True, slots=True)
class Tables:
    """One installed set of tables, reached through one driver."""

    driver: Driver
    names: Names
    dsn: str
    """The database they are in."""

    def store(self, clock: Clock) -> PostgresStore:
        """As a worker that has just started sees it: it remembers no claim."""
        return PostgresStore(self.driver, self.names, clock=clock)

    async def empty(self) -> None:
        """As they were when they were new, but for what is counted and the next ids."""
        # Each table has a few rows, for which DELETE costs a tenth of TRUNCATE.
        relations = Binding(self.names).relations
        kept = ("prefix", "status", "migrations", "counted")
        tables = [table for name, table in relations.items() if name not in kept]
        await self.driver.script(
            "; ".join(f"delete from {table}" for table in tables)
            + f"; insert into {relations['retention']} default values"
        )

    async def rows(self) -> dict[str, int]:
        """How many rows each table has."""
        counts = {}
        for name, table in Binding(self.names).relations.items():
            if name not in ("prefix", "status"):
                [[counts[name]]] = await self.driver.fetch(f"select count(*) from {table}")
        return counts


class Backends:
    """Opens each backend once and keeps it for all tests of this process."""

    def __init__(self, shared: SharedServers, stack: AsyncExitStack) -> None:
        self._shared = shared
        self._stack = stack
        self._open: dict[str, Tables] = {}
        self._users: dict[str, dict[DatabaseRole, Tables]] = {}

    async def emptied(self, name: str) -> Tables:
        """The tables of a backend without a single row in them."""
        if name not in self._open:
            self._open[name] = await self._install(name)
        else:
            await self._open[name].empty()
        return self._open[name]

    def dsn(self, name: str) -> str:
        """The database of a backend that is open."""
        return self._open[name].dsn

    async def workers(self, name: str, clock: Clock) -> Callable[[], Store]:
        """A way to make stores on one empty backend, which share nothing but its rows."""
        if name == MEMORY:
            store = MemoryStore(clock)
            return lambda: store
        if name.startswith(ROLES):
            await self.emptied(name)
            users = self._users[name]
            return lambda: RolesStore({role: tables.store(clock) for role, tables in users.items()})
        tables = await self.emptied(name)
        return lambda: tables.store(clock)

    async def _install(self, name: str) -> Tables:
        kind, _, server = name.partition("-")
        database = self._stack.enter_context(self._shared.schema(server))
        driver = await self._stack.enter_async_context(_opened(kind, database))
        tables = Tables(driver, Names(schema=database.schema), database.server_dsn)
        await PostgresStore(driver, tables.names).install()
        if kind == ROLES:
            roles = self._stack.enter_context(granted(database, tables.names, installed=True))
            self._users[name] = {
                role: replace(tables, driver=await self._connect(roles, role))
                for role in DatabaseRole
            }
        return tables

    async def _connect(self, roles: Roles, role: DatabaseRole) -> Driver:
        driver = connect(roles.dsn(role, search_path=False))
        self._stack.push_async_callback(driver.close)
        return driver


@asynccontextmanager
async def _opened(kind: str, database: Database) -> AsyncIterator[Driver]:
    dsn = database.server_dsn
    match kind:
        case "asyncpg":
            connection = await asyncpg.connect(dsn)
            yield AsyncpgDriver(connection)
            await connection.close()
        case "asyncpg_pool":
            async with asyncpg.create_pool(dsn, min_size=1, max_size=4) as pool:
                yield AsyncpgPoolDriver(pool)
        case "psycopg":
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
                yield PsycopgDriver(connection)
        case "sync" | "sync_manual":
            with psycopg.connect(dsn, autocommit=kind == "sync") as synchronous:
                yield SyncPsycopgDriver(synchronous)
        case "asyncpg_dsn" | "psycopg_dsn" | "roles":
            driver = connect(dsn, driver="psycopg" if kind == "psycopg_dsn" else "asyncpg")
            yield driver
            await driver.close()
        case _:
            raise AssertionError(f"no backend {kind!r}")
