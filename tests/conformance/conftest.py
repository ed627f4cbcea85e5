"""Every test here runs on every store alike; what it may use is `queue`."""

from __future__ import annotations

import inspect
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from holdfast.clock import ManualClock
from tests.conformance.backends import EVERYWHERE, Backends
from tests.conformance.stores import QueueUnderTest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers import SharedServers

_HERE = Path(__file__).parent


_SESSION_LOOP = pytest.mark.asyncio(loop_scope="session")
"""One event loop for all of them, because a connection that is opened once belongs to one."""


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # Here the event loop gets its scope. A marker that comes later makes a loop for each test, and
    # with it all backends.
    if inspect.iscoroutinefunction(metafunc.function):
        metafunc.definition.add_marker(_SESSION_LOOP, append=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == _HERE and pytest_asyncio.is_async_test(item):
            item.add_marker(_SESSION_LOOP, append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def backends(pg_servers: SharedServers) -> AsyncIterator[Backends]:
    async with AsyncExitStack() as stack:
        yield Backends(pg_servers, stack)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture(loop_scope="session", params=EVERYWHERE)
async def queue(
    request: pytest.FixtureRequest, backends: Backends, clock: ManualClock
) -> QueueUnderTest:
    """An empty store of each kind in turn, under a clock that the test moves."""
    return QueueUnderTest(request.param, clock, await backends.workers(request.param, clock))
