"""A queue for typed tasks: in memory, and on a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast import Holdfast
from tests import servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(params=["memory", "asyncpg", "psycopg"])
async def hf(request: pytest.FixtureRequest) -> AsyncIterator[Holdfast]:
    """An empty queue."""
    if request.param == "memory":
        yield Holdfast.in_memory()
        return
    dsn = request.getfixturevalue("pg18").dsn
    servers.prepare(dsn)
    async with Holdfast.connect(dsn, driver=request.param) as hf:
        await hf.install()
        yield hf
