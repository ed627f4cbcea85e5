"""Databases whose users have the roles of `holdfast sql grants`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import servers
from tests.security.roles import granted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.security.roles import Roles
    from tests.servers import Database, SharedServers


@pytest.fixture
def roles(pg: Database) -> Iterator[Roles]:
    """Empty tables, and a user for each role, on each kind of server in turn."""
    with granted(pg) as made:
        yield made


@pytest.fixture
def roles18(pg18: Database) -> Iterator[Roles]:
    with granted(pg18) as made:
        yield made


@pytest.fixture(scope="module", params=sorted(servers.available()))
def shared_roles(request: pytest.FixtureRequest, pg_servers: SharedServers) -> Iterator[Roles]:
    """The same for tests that change nothing."""
    with pg_servers.schema(request.param) as database, granted(database) as made:
        yield made
