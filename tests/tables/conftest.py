"""Benches on every kind of table, over both client libraries and all servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests import servers
from tests.tables.three_tables import KINDS, SNOOZES, Bench, DriverName, bench, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from typing import Any

    from tests.servers import Database, SharedServers


class Link(NamedTuple):
    """A server and the client library that talks to it."""

    server: str
    driver: DriverName


def links() -> list[Link]:
    """Each client library, each server: not each of one with each of the other."""
    kinds = sorted(servers.available())
    return [Link(kinds[0], "psycopg"), Link(kinds[-1], "asyncpg")]


@pytest.fixture(params=links(), ids=lambda link: f"{link.driver}-{link.server}")
def link(request: pytest.FixtureRequest) -> Link:
    return request.param


@pytest.fixture
def place(link: Link, pg_servers: SharedServers) -> Iterator[Database]:
    """A schema without any table."""
    with pg_servers.schema(link.server) as database:
        yield database


@pytest.fixture(params=KINDS)
async def table(
    request: pytest.FixtureRequest, link: Link, place: Database
) -> AsyncIterator[Bench]:
    """Each kind of table in turn."""
    async with bench(KINDS[request.param], place.dsn, link.driver) as found:
        yield found


@pytest.fixture
async def snoozes(link: Link, place: Database) -> AsyncIterator[Bench]:
    """The article's table."""
    async with bench(SNOOZES, place.dsn, link.driver) as found:
        yield found


@pytest.fixture
async def witness(pg18: Database) -> AsyncIterator[Any]:
    """A session to prepare, look on and meddle."""
    async with session(pg18.dsn) as connection:
        yield connection
