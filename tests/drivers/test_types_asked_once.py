"""What PostgreSQL's own array types are is asked once, and what a user's are on each connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from holdfast.stores.postgres.drivers import asyncpg as driver
from holdfast.stores.postgres.drivers.dsn import parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pytest

    from holdfast.stores.postgres.drivers.base import Row
    from tests.servers import Database


async def ask(pg: Database, sql: str, *args: object) -> Sequence[Row]:
    """On a connection of its own."""
    connection = await driver.open_connection(
        parse(pg.dsn), application_name="test", seconds=10, cache_size=10
    )
    try:
        return await connection.fetch(sql, args, 10)
    finally:
        await connection.close()


async def test_types_of_postgresql_are_asked_about_once(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[int]] = []
    original = asyncpg.Connection._introspect_types

    async def noted(connection: asyncpg.Connection, oids: Iterable[int], timeout: float) -> object:
        asked.append({*oids})
        return await original(connection, oids, timeout)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", noted)
    monkeypatch.setattr(driver._Connection, "_known", {})
    for _ in range(3):
        [row] = await ask(pg, "select $1::bigint[], $2::timestamptz[]", [1, None], [])
        assert list(row) == [[1, None], []]
    assert len(asked) == 1
    await ask(pg, "create type mood as enum ('calm', 'cross')")
    for _ in range(2):
        [row] = await ask(pg, "select $1::mood[]", ["calm"])
        assert list(row) == [["calm"]]
    assert len(asked) == 3
