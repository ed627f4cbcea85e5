"""A queue on a real server, and the connection that a reader's own SQL goes through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from holdfast import Holdfast
from tests import servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers import Database


@pytest.fixture
async def connection(pg: Database) -> AsyncIterator[Any]:
    found = await asyncpg.connect(pg.dsn)
    yield found
    await found.close()


@pytest.fixture
async def hf(pg: Database) -> AsyncIterator[Holdfast]:
    servers.prepare(pg.dsn)
    async with Holdfast.connect(pg.dsn) as made:
        await made.install()
        yield made


@pytest.fixture
async def other(pg: Database, hf: Holdfast) -> AsyncIterator[Holdfast]:
    """Another worker on the same tables."""
    async with Holdfast.connect(pg.dsn) as made:
        yield made
