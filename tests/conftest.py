"""Fixtures that every test may use: a schema on a real server, or a server of its own."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from typing import TYPE_CHECKING

import pytest
import uvloop

from tests import servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from devtools.cluster import Cluster
    from tests.servers import Database, SharedServers


def pytest_configure() -> None:
    # A shell that ignores SIGINT (nohup, a background job) hands that on to every process that the
    # tests start. Those must hear Ctrl-C as they do at a terminal.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


ON_BOTH_LOOPS = (
    "tests/worker/",
    "tests/scheduler/",
    "tests/drivers/",
    "tests/guide/",
    "tests/faults/test_deaths.py",
    "tests/faults/test_failover.py",
    "tests/faults/test_full_server.py",
    "tests/faults/test_locked_table.py",
    "tests/faults/test_pgbouncer.py",
    "tests/faults/test_signals.py",
    "tests/faults/test_silence.py",
    "tests/faults/test_slow_link.py",
    "tests/unit/test_executors.py",
    "tests/unit/test_process_executor.py",
    "tests/unit/test_retry_executor.py",
    "tests/unit/test_wakeup_policy.py",
)
"""Tests of code that touches the event loop. They run on uvloop and again on asyncio's loop."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop is the default of `holdfast run`, so it is the default of the tests."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    path = item.path.relative_to(config.rootpath).as_posix()
    if path.startswith(ON_BOTH_LOOPS):
        loops["asyncio"] = asyncio.SelectorEventLoop
    return loops


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without `make test-all`, each loop, server and store, but not each with each other."""
    if servers.ALL:
        return
    left_out = {item for item in items if isinstance(item, pytest.Function) and _is_mixed(item)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _is_mixed(item: pytest.Function) -> bool:
    """Whether a test on both loops runs on the usual one with a server or store that is not usual.

    uvloop goes with the embedded server, asyncio's loop with Debian's; a test of both stores has
    PostgreSQL on uvloop, and memory on asyncio's loop.
    """
    chosen = item.callspec.id.split("-") if hasattr(item, "callspec") else []
    loops = {"uvloop", "asyncio"}.intersection(chosen)
    others = _ALTERNATIVES.intersection(chosen)
    if not loops or not others:
        return False
    usual = others <= {servers.EMBEDDED, "postgres"}
    return usual != (loops == {"uvloop"})


_KINDS = servers.available()
_ALTERNATIVES = {"memory", "postgres", *(_KINDS if len(_KINDS) > 1 else ())}
"""What a test may be repeated on, beside the loops."""


def pytest_unconfigure(config: pytest.Config) -> None:
    # By now every worker is gone, also one that crashed while it was the last.
    if not hasattr(config, "workerinput"):
        servers.sweep_abandoned()


@pytest.fixture(scope="session")
def pg_servers() -> Iterator[SharedServers]:
    """The shared servers; use its `schema()` for data that a whole module reads."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", secrets.token_hex(16))[:12]
    process = os.environ.get("PYTEST_XDIST_WORKER", "main")
    with servers.shared_servers(run, process) as shared:
        yield shared


@pytest.fixture(params=sorted(servers.available()))
def pg(request: pytest.FixtureRequest, pg_servers: SharedServers) -> Iterator[Database]:
    """A schema of its own, on each kind of server in turn."""
    with pg_servers.schema(request.param) as database:
        yield database


@pytest.fixture
def pg18(pg_servers: SharedServers) -> Iterator[Database]:
    """A schema of its own on PostgreSQL 18 alone, where the version cannot matter."""
    with pg_servers.schema(servers.EMBEDDED) as database:
        yield database


@pytest.fixture
def controlled_server(pg_servers: SharedServers) -> Iterator[Cluster]:
    """A started server that the test may stop, kill and start again."""
    with pg_servers.private() as server:
        yield server


@pytest.fixture
def server_directory(pg_servers: SharedServers) -> Path:
    """An empty folder that PostgreSQL's account can reach, unlike `tmp_path` under root."""
    directory = pg_servers.directory / f"directory-{secrets.token_hex(6)}"
    directory.mkdir()
    return directory
