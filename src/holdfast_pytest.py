"""The pytest plugin: fixtures of Holdfast for an application's tests.

It stands outside the package, so that a suite which does not use it imports nothing of Holdfast.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.testing import QueueUnderTest

DSN_VARIABLE = "HOLDFAST_TEST_DSN"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--holdfast-dsn",
        default=None,
        help="the PostgreSQL of the fixture holdfast_pg; without it HOLDFAST_TEST_DSN, or an "
        "embedded server",
    )


@pytest.fixture
def holdfast() -> Iterator[QueueUnderTest]:
    """A queue in memory, whose clock the test moves."""
    from holdfast.testing import in_memory

    with in_memory() as queue:
        yield queue


@pytest.fixture(scope="session")
def holdfast_pg_dsn(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The database of `holdfast_pg`. Override it to use one of your own."""
    from holdfast.testing import embedded_dsn

    given = request.config.getoption("--holdfast-dsn") or os.environ.get(DSN_VARIABLE)
    if given:
        yield given
        return
    with embedded_dsn(tmp_path_factory) as dsn:
        yield dsn


@pytest.fixture
def holdfast_pg(request: pytest.FixtureRequest, holdfast_pg_dsn: str) -> Iterator[QueueUnderTest]:
    """A queue in a schema of its own on PostgreSQL."""
    from holdfast.testing import on_postgres

    with on_postgres(holdfast_pg_dsn) as queue:
        _close_with_test(request.node, queue)
        yield queue


def _close_with_test(item: Any, queue: QueueUnderTest) -> None:
    """Close connections in the event loop of the test: it is gone when fixtures are torn down."""
    test = item.obj
    if not inspect.iscoroutinefunction(test):
        return

    @functools.wraps(test)
    async def closing(*args: Any, **kwargs: Any) -> None:
        try:
            await test(*args, **kwargs)
        finally:
            await queue.close()

    item.obj = closing
