"""A server without a free connection: it is said rarely, tried rarely, and the operator gets in."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import asyncpg
import psycopg
import pytest

from devtools.cluster import Cluster
from holdfast import Holdfast, Job
from holdfast.errors import ConnectionFailed
from holdfast.stores.postgres.drivers import connect
from tests import servers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTINGS = {
    "max_connections": "20",
    "superuser_reserved_connections": "2",
    "reserved_connections": "3",
    "log_connections": "on",
}
PATIENCE = 100.0


@pytest.fixture
def server(server_directory: Path) -> Iterator[Cluster]:
    binaries = servers.available()[servers.EMBEDDED]
    with Cluster(server_directory, binaries=binaries, settings=SETTINGS) as made:
        with psycopg.connect(made.dsn, autocommit=True) as connection:
            for role in ("worker", "filler", "operator"):
                connection.execute(f"create role {role} login".encode())
            connection.execute("grant pg_use_reserved_connections to operator")
            connection.execute("grant create on schema public to worker")
            connection.execute("grant worker to operator")
        yield made


def dsn_of(server: Cluster, role: str) -> str:
    return server.dsn.replace("//postgres@", f"//{role}@")


async def fill(server: Cluster, stack: AsyncExitStack) -> list[Any]:
    """Take every connection that is not reserved."""
    taken: list[Any] = []
    while True:
        try:
            connection = await asyncpg.connect(dsn_of(server, "filler"))
        except asyncpg.TooManyConnectionsError:
            return taken
        stack.push_async_callback(connection.close)
        taken.append(connection)


def holdfast(dsn: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", "--dsn", dsn, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
async def test_the_error_names_the_remedy_which_works(
    library: Literal["asyncpg", "psycopg"], server: Cluster
) -> None:
    async with Holdfast.connect(dsn_of(server, "worker")) as hf:
        await hf.install()
    async with AsyncExitStack() as stack:
        await fill(server, stack)
        driver = connect(dsn_of(server, "worker"), driver=library)
        with pytest.raises(ConnectionFailed, match=r"no free connection.*pg_use_reserved_conn"):
            await driver.fetch("select 1")
        await driver.close()
        refused = await asyncio.to_thread(holdfast, dsn_of(server, "worker"), "stats")
        assert refused.returncode != 0
        assert "pg_use_reserved_connections" in refused.stderr
        admitted = await asyncio.to_thread(holdfast, dsn_of(server, "operator"), "stats")
        assert admitted.returncode == 0, admitted.stderr


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
async def test_workers_say_it_once_and_try_rarely_and_go_on_when_there_is_room(
    library: Literal["asyncpg", "psycopg"], server: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "holdfast")
    done = asyncio.Event()
    seconds = 6.0
    async with AsyncExitStack() as stack:
        workers = [Holdfast.connect(dsn_of(server, "worker"), driver=library) for _ in range(3)]
        for hf in workers:
            await stack.enter_async_context(hf)

            @hf.entrypoint("mail")
            async def mail(job: Job) -> None:
                done.set()

        await workers[0].install()
        taken = await fill(server, stack)
        tasks = [asyncio.create_task(hf.run(signals=False)) for hf in workers]
        await asyncio.sleep(seconds)
        refused = server.log.read_text(errors="replace").count("remaining connection slots")
        lines = Counter(record.getMessage().partition(":")[0] for record in caplog.records)
        assert 0 < max(lines.values()) <= len(workers), lines
        # Five connections of each worker, each of which tries about once a second or less.
        assert refused <= len(workers) * 5 * (seconds + 3), refused
        for connection in taken:
            await connection.close()
        await workers[0].queries.enqueue("mail")
        async with asyncio.timeout(PATIENCE):
            await done.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_full_server_does_not_disturb_a_worker_that_has_its_connections(
    server: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Its leases are renewed and its outcomes written over what it has."""
    caplog.set_level(logging.WARNING, "holdfast")
    lease = timedelta(seconds=1.5)
    async with AsyncExitStack() as stack:
        hf = await stack.enter_async_context(Holdfast.connect(dsn_of(server, "worker")))

        @hf.entrypoint("nap")
        async def nap(job: Job) -> None:
            await asyncio.sleep(float(job.payload or b"0"))

        await hf.install()
        await hf.queries.enqueue("nap")
        run = asyncio.create_task(hf.run(signals=False, heartbeat_timeout=lease, concurrency=200))
        async with asyncio.timeout(PATIENCE):
            while await hf.queries.queue_size():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await fill(server, stack)
            # Longer than two leases, and more of them than one connection has time for at once.
            jobs = await hf.queries.enqueue(["nap"] * 200, [b"4"] * 200)
            while await hf.queries.queue_size():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        hf.shutdown.set()
        await run
        log = await hf.queries.queue_log(limit=1000)
        done = {entry.job_id for entry in log if entry.recoveries == 0}
        assert {str(entry.status) for entry in log} == {"successful"}
        assert done >= set(jobs)
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_worker_that_finds_no_free_connection_waits_for_one(
    server: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "holdfast")
    async with AsyncExitStack() as stack:
        async with Holdfast.connect(dsn_of(server, "worker")) as producer:
            await producer.install()
            await producer.queries.enqueue("mail")
        taken = await fill(server, stack)
        hf = await stack.enter_async_context(Holdfast.connect(dsn_of(server, "worker")))
        done = asyncio.Event()

        @hf.entrypoint("mail")
        async def mail(job: Job) -> None:
            done.set()

        run = asyncio.create_task(hf.run(signals=False))

        def refused() -> int:
            return server.log.read_text(errors="replace").count("remaining connection slots")

        async with asyncio.timeout(PATIENCE):
            while refused() < 3:  # noqa: ASYNC110 - a few tries
                await asyncio.sleep(0.05)
            assert not run.done()
            for connection in taken:
                await connection.close()
            await done.wait()
        hf.shutdown.set()
        await run
    waits = [r.getMessage() for r in caplog.records if "waits for a free" in r.getMessage()]
    assert len(waits) == 1
