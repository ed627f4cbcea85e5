"""Makes queues under test, in memory and on PostgreSQL."""

from __future__ import annotations

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast import embedded
from holdfast.app import Holdfast
from holdfast.stores.memory import InMemoryDriver
from holdfast.stores.postgres.drivers import connect
from holdfast.testing.clock import TravelClock
from holdfast.testing.queue import QueueUnderTest

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator


@contextmanager
def in_memory() -> Iterator[QueueUnderTest]:
    """A queue without a database."""
    clock = TravelClock()
    driver = InMemoryDriver(clock)
    queue = QueueUnderTest(driver, clock=clock)
    queue.travel_clock = clock
    try:
        yield queue
    finally:
        queue.release()


@contextmanager
def on_postgres(dsn: str) -> Iterator[QueueUnderTest]:
    """A queue in a new schema, which is dropped afterwards with everything in it."""
    schema = f"holdfast_test_{secrets.token_hex(6)}"
    _run(_create(dsn, schema))
    clock = TravelClock()
    queue = QueueUnderTest.connect(dsn, schema=schema, clock=clock)
    queue.dsn = dsn
    queue.travel_clock = clock
    try:
        yield queue
    finally:
        queue.release()
        _run(_drop(dsn, schema))


@contextmanager
def embedded_dsn(folders: Any) -> Iterator[str]:
    """Start an embedded server in a new folder, and stop it afterwards."""
    server = embedded.start(folders.mktemp("holdfast") / "server")
    try:
        yield server.dsn
    finally:
        server.stop()


async def _create(dsn: str, schema: str) -> None:
    driver = connect(dsn)
    try:
        await driver.script(f"create schema {schema}")
    finally:
        await driver.close()
    async with Holdfast.connect(dsn, schema=schema) as hf:
        await hf.install()


async def _drop(dsn: str, schema: str) -> None:
    driver = connect(dsn)
    try:
        await driver.script(f"set lock_timeout = '10s'; drop schema if exists {schema} cascade")
    finally:
        await driver.close()


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run it in a thread of its own, because the test's event loop may run in this one."""
    with ThreadPoolExecutor(1, "holdfast-testing") as thread:
        thread.submit(asyncio.run, work).result()
