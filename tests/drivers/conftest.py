"""What tests of drivers are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from tests.drivers.every_driver import ALL_KINDS, opened
from tests.faults.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.stores.postgres.drivers.base import Driver
    from tests.servers import Database


@pytest.fixture(params=ALL_KINDS)
async def driver(request: pytest.FixtureRequest, pg: Database) -> AsyncIterator[Driver]:
    async with opened(request.param, pg.dsn) as made:
        yield made


@pytest.fixture
async def witness(pg18: Database) -> AsyncIterator[Any]:
    """Another session of the same database, to look on from outside."""
    connection = await asyncpg.connect(pg18.dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def pg_witness(pg: Database) -> AsyncIterator[Any]:
    """Another session of the same database, on each kind of server."""
    connection = await asyncpg.connect(pg.dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def proxy(pg18: Database) -> AsyncIterator[Proxy]:
    async with Proxy(pg18.dsn) as made:
        yield made
