"""The fixtures of the plugin, on the servers of this suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import servers

if TYPE_CHECKING:
    from holdfast.testing import QueueUnderTest
    from tests.servers import SharedServers


@pytest.fixture(scope="session")
def holdfast_pg_dsn(pg_servers: SharedServers) -> str:
    return pg_servers.dsn(servers.EMBEDDED)


@pytest.fixture(params=["holdfast", "holdfast_pg"])
def queue(request: pytest.FixtureRequest) -> QueueUnderTest:
    """In memory and on PostgreSQL in turn."""
    found: QueueUnderTest = request.getfixturevalue(request.param)
    return found
