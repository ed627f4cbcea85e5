"""SIGTERM to real processes: they end in time, cleanly, and hold nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest

from holdfast.clock import monotonic
from tests.faults.crew import Crew, eventually
from tests.faults.proxy import Proxy

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.servers import Database

SLACK = 60.0
"""Seconds that a busy machine may take for what should take one."""


@pytest.fixture
async def crew(pg18: Database, tmp_path: Path) -> AsyncIterator[Crew]:
    async with Crew(pg18.dsn, tmp_path) as made:
        yield made


async def holds_nothing(crew: Crew, database: Database) -> None:
    """No lease, no entry in the books, no connection."""
    connection = await asyncpg.connect(database.dsn)
    try:
        for table in ("holdfast_leases", "holdfast_workers"):
            assert await connection.fetchval(f"select count(*) from {table}") == 0
        held = "select count(*) from holdfast where claim_token is not null"
        assert await connection.fetchval(held) == 0

        async def disconnected() -> bool:
            names = await connection.fetch(
                "select application_name from pg_stat_activity"
                " where datname = current_database() and application_name like 'holdfast:%'"
            )
            # The test's own producer has one.
            return [name for (name,) in names] == ["holdfast:main"]

        await eventually(disconnected)
    finally:
        await connection.close()


async def test_a_terminated_worker_ends_in_time_and_holds_nothing(
    crew: Crew, pg18: Database
) -> None:
    done, *hung = await crew.hf.queries.enqueue(
        ["nap", "hang_once", "hang_once"], [b"1", None, None]
    )
    drain = 3.0
    worker = await crew.start(drain_timeout=drain, lease=30.0)
    await crew.until_started(3)
    began = monotonic()
    worker.terminate()

    assert await crew.ends(worker, drain + SLACK) == 0, crew.said
    assert monotonic() - began >= drain - 1
    await holds_nothing(crew, pg18)
    assert [str(s) for _, s in await crew.hf.queries.job_status([done, *hung])] == [
        "successful",
        "queued",
        "queued",
    ]
    for job in await crew.hf.queries.get_jobs(hung):
        assert (job.attempts, job.recoveries) == (0, 0)


async def test_a_second_signal_ends_the_worker_at_once(crew: Crew, pg18: Database) -> None:
    worker = await crew.start(drain_timeout=3600.0, lease=3.0)
    await crew.hf.queries.enqueue(["hang_once"] * 3)
    await crew.until_started(3)
    worker.terminate()
    await until_draining(crew, worker)
    for _ in range(4):
        worker.terminate()

    assert await crew.ends(worker, SLACK + 1) == 0, crew.said
    await holds_nothing(crew, pg18)


async def until_draining(crew: Crew, worker: subprocess.Popen[bytes]) -> None:
    async def draining() -> bool:
        workers = await crew.hf.queries.list_workers()
        return any((w.pid, w.state) == (worker.pid, "draining") for w in workers)

    await eventually(draining)


async def test_one_signal_stops_all_workers_of_a_process(crew: Crew, pg18: Database) -> None:
    process = await crew.start(workers=3, drain_timeout=0.0, concurrency=1)
    jobs = await crew.hf.queries.enqueue(["hang_once"] * 3)
    await crew.until_started(3)
    process.terminate()

    assert await crew.ends(process, SLACK) == 0, crew.said
    await holds_nothing(crew, pg18)
    assert {str(status) for _, status in await crew.hf.queries.job_status(jobs)} == {"queued"}


async def test_an_idle_worker_ends_at_once(crew: Crew, pg18: Database) -> None:
    worker = await crew.start(drain_timeout=3600.0, dequeue_timeout=3600.0)
    await crew.worker_id(worker)
    worker.terminate()

    assert await crew.ends(worker, SLACK) == 0, crew.said
    await holds_nothing(crew, pg18)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("jobs", [0, 3])
async def test_a_worker_whose_database_is_silent_ends_in_time(
    crew: Crew, pg18: Database, driver: str, jobs: int
) -> None:
    async with Proxy(pg18.dsn) as proxy:
        drain = 1.0
        worker = await crew.start(
            dsn=proxy.dsn, drain_timeout=drain, dequeue_timeout=0.2, lease=30.0, driver=driver
        )
        await crew.hf.queries.enqueue(["hang_once"] * jobs)
        await crew.until_started(jobs)
        await crew.worker_id(worker)
        await proxy.swallow()
        # Now a claim is on its way, and stays there.
        await asyncio.sleep(0.5)
        worker.terminate()

        assert await crew.ends(worker, drain + SLACK) == 0, crew.said


@pytest.mark.parametrize("role", ["main", "listen", "renew"])
async def test_a_worker_goes_on_when_one_of_its_connections_is_terminated(
    crew: Crew, pg18: Database, role: str
) -> None:
    worker = await crew.start(lease=2.0, dequeue_timeout=3600.0)
    connection = await asyncpg.connect(pg18.dsn)
    try:
        [first] = await crew.hf.queries.enqueue("nap", b"0")
        await crew.until_empty()
        # That of the renewals is open only while a lease is held.
        assert await terminated(connection, role) >= (role != "renew")
        [second] = await crew.hf.queries.enqueue("nap", b"3")
        await crew.until(lambda: len(crew.runs(second)) == 1)

        async def hit() -> bool:
            return await terminated(connection, role) >= 1

        await eventually(hit)
        await crew.until_empty()
        # Woken by a notification, for there is no poll.
        [third] = await crew.hf.queries.enqueue("nap", b"0")
        await crew.until_empty()
    finally:
        await connection.close()

    assert worker.poll() is None
    log = await crew.log()
    assert [(e.job_id, e.status) for e in log] == [
        (job, "successful") for job in (first, second, third)
    ]
    assert log[1].created - log[1].claimed_at >= timedelta(seconds=3)  # type: ignore[operator]


async def terminated(connection: asyncpg.Connection, role: str) -> int:
    """How many connections of the role were ended."""
    return await connection.fetchval(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity"
        " where datname = current_database() and application_name = $1",
        f"holdfast:{role}",
    )
