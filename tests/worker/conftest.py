"""Queues for the worker's tests: in memory, and on a real server."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from holdfast import Holdfast, InMemoryDriver, Queries
from holdfast.stores.postgres.drivers import connect
from holdfast.stores.postgres.grants import DatabaseRole
from holdfast.stores.postgres.store import PostgresStore
from tests import servers
from tests.security.roles import granted_again
from tests.security.split import RolesStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.security.roles import Roles
    from tests.servers import Database

    NewWorker = Callable[[], Holdfast]


@pytest.fixture(params=["memory", "postgres"])
async def new_worker(request: pytest.FixtureRequest) -> AsyncIterator[NewWorker]:
    """Makes workers on one empty queue, in memory and on PostgreSQL in turn.

    There they have the privileges of a worker, and their queries those of whoever else is meant.
    """
    if request.param == "memory":
        driver = InMemoryDriver()
        yield lambda: Holdfast(driver)
        return
    async with connecting_as(granted_again(request.getfixturevalue("pg18"))) as connect:
        yield connect


@pytest.fixture
async def new_pg_worker(pg18: Database) -> AsyncIterator[NewWorker]:
    """The same where only a server will do."""
    async with connecting(pg18) as connect:
        yield connect


class connecting:
    """Installs the tables, makes workers of them, and closes these in the end."""

    def __init__(self, database: Database) -> None:
        self._dsn = database.dsn
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> NewWorker:
        servers.prepare(self._dsn)
        await self._make().install()
        return self._make

    async def __aexit__(self, *failure: object) -> None:
        await self._stack.aclose()

    def _make(self) -> Holdfast:
        made = Holdfast.connect(self._dsn)
        self._stack.push_async_callback(made.store.close)
        return made


class connecting_as:
    """Makes workers that may do no more than a worker, beside producers and operators."""

    def __init__(self, roles: Roles) -> None:
        self._roles = roles
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> NewWorker:
        return self._make

    async def __aexit__(self, *failure: object) -> None:
        await self._stack.aclose()

    def _make(self) -> Holdfast:
        made = Holdfast.connect(self._roles.dsn(DatabaseRole.WORKER))
        self._stack.push_async_callback(made.store.close)
        users = {role: self._store(role) for role in DatabaseRole}
        made.queries = Queries(RolesStore(users))
        return made

    def _store(self, role: DatabaseRole) -> PostgresStore:
        driver = connect(self._roles.dsn(role))
        self._stack.push_async_callback(driver.close)
        return PostgresStore(driver)


@pytest.fixture
def hf(new_worker: NewWorker) -> Holdfast:
    return new_worker()


@pytest.fixture
def pg_hf(new_pg_worker: NewWorker) -> Holdfast:
    return new_pg_worker()


@pytest.fixture
async def witness(pg18: Database) -> AsyncIterator[Any]:
    """Another session of the same schema, to look on and to meddle."""
    connection = await asyncpg.connect(pg18.dsn)
    yield connection
    await connection.close()
