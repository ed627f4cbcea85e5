"""A worker stays within the connections it was given, and closes what it does not need."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from holdfast import Context, Holdfast, Job
from holdfast.errors import InvalidInput
from holdfast.stores.postgres.drivers import pool
from tests.worker.test_connections import Mixture
from tests.worker.workers import Gauge, Watch, ends, eventually, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.servers import Database

SECOND = timedelta(seconds=1)
OPEN = (
    "select application_name from pg_stat_activity"
    " where datname = current_database() and application_name like 'holdfast:%'"
)


class Census:
    """The connections of the workers in a database, and the most there ever were."""

    def __init__(self, witness: asyncpg.Connection) -> None:
        self._witness = witness
        self._asking = asyncio.Lock()
        self.most: Sequence[str] = ()
        self.seen: set[str] = set()

    async def take(self) -> list[str]:
        async with self._asking:
            found = await self._witness.fetch(OPEN)
        names = sorted(row[0].partition(":")[2] for row in found)
        self.most = max(self.most, names, key=len)
        self.seen.update(names)
        return names

    async def keep(self) -> None:
        """Until cancelled."""
        while True:
            await self.take()
            await asyncio.sleep(0.002)


@asynccontextmanager
async def counted(database: Database) -> AsyncIterator[Census]:
    witness = await asyncpg.connect(database.server_dsn)
    census = Census(witness)
    counting = asyncio.create_task(census.keep())
    try:
        yield census
    finally:
        counting.cancel()
        await asyncio.wait([counting])
        await witness.close()


@pytest.fixture
async def alone(pg18: Database) -> Database:
    """No connection of another test is counted."""
    witness = await asyncpg.connect(pg18.server_dsn)

    async def empty() -> bool:
        return await witness.fetch(OPEN) == []

    await eventually(empty)
    await witness.close()
    return pg18


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("connections", [1, 2, 3, 4, None, 7])
async def test_a_busy_worker_stays_within_its_connections(
    alone: Database, library: Any, connections: int | None
) -> None:
    async with Holdfast.connect(alone.dsn, driver=library) as hf:
        await hf.install()
        mixture = Mixture(hf)
        settings: dict[str, Any] = {"dequeue_timeout": SECOND, "heartbeat_timeout": 4 * SECOND}
        async with counted(alone) as census:
            async with working(hf, connections=connections, **settings):
                await mixture.enqueue(hf)
                await mixture.until_done(hf)
            await mixture.check([hf])
    assert 1 <= len(census.most) <= (connections or 4), census.most


@pytest.mark.parametrize(("connections", "at_once"), [(None, 1), (6, 3)])
async def test_transactions_of_handlers_stay_within_the_connections(
    alone: Database, connections: int | None, at_once: int
) -> None:
    gauge = Gauge()
    async with Holdfast.connect(alone.dsn) as hf:
        await hf.install()

        @hf.entrypoint("count")
        async def count(job: Job, ctx: Context) -> None:
            async with ctx.transaction() as tx:
                with gauge:
                    await tx.execute("select pg_sleep(0.01)")

        await hf.queries.enqueue(["count"] * 20)
        async with counted(alone) as census:
            await ends(hf.run(mode="drain", connections=connections))
    assert gauge.total == 20
    assert 1 <= gauge.most <= at_once
    assert len(census.most) <= (connections or 4), census.most


async def test_too_few_connections_for_a_transaction_are_named(pg18: Database) -> None:
    async with Holdfast.connect(pg18.dsn) as hf:
        await hf.install()
        watch = Watch(hf)

        @hf.entrypoint("count", on_failure="hold")
        async def count(job: Job, ctx: Context) -> None:
            async with ctx.transaction():
                pass

        await hf.queries.enqueue("count")
        await ends(hf.run(mode="drain", connections=3))
        [held] = await hf.queries.list_failed_jobs(limit=2)
    assert "needs at least 4 connections, and this worker has 3" in str(held.last_error)
    assert len(watch.settled) == 1


async def test_an_idle_worker_holds_two_connections_and_renews_on_a_third_while_it_must(
    alone: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.2)
    release = asyncio.Event()
    async with Holdfast.connect(alone.dsn) as hf, counted(alone) as census:
        await hf.install()

        @hf.entrypoint("long")
        async def long(job: Job) -> None:
            await release.wait()

        async def idle() -> bool:
            return await census.take() == ["listen", "main"]

        async def renewing() -> bool:
            return "renew" in await census.take()

        async with working(hf, heartbeat_timeout=SECOND):
            await eventually(idle)
            await hf.queries.enqueue(["long"] * 50)
            await eventually(renewing)
            assert len(await hf.queries.list_workers()) == 1
            release.set()
            await eventually(idle)
            [worker] = await hf.queries.list_workers()

            async def reported_again() -> bool:
                [later] = await hf.queries.list_workers()
                return later.heartbeat > worker.heartbeat

            await eventually(reported_again)
            assert "renew" not in await census.take()


async def test_a_blocked_loop_keeps_its_leases_with_two_connections(pg18: Database) -> None:
    import time

    async with Holdfast.connect(pg18.dsn) as hf:
        await hf.install()

        @hf.entrypoint("block")
        async def block(job: Job) -> None:
            await asyncio.sleep(0.5)
            time.sleep(2.5)  # noqa: ASYNC251 - what is tested

        [job_id] = await hf.queries.enqueue("block")
        await hf.run(mode="drain", connections=2, heartbeat_timeout=SECOND, signals=False)
        log = await hf.queries.queue_log(limit=10)
        assert [(entry.job_id, str(entry.status), entry.recoveries) for entry in log] == [
            (job_id, "successful", 0)
        ]


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "4"])
async def test_a_number_of_connections_that_cannot_be_is_refused(
    pg18: Database, wrong: Any
) -> None:
    async with Holdfast.connect(pg18.dsn) as hf:
        with pytest.raises(InvalidInput, match="connections must be an integer of at least 1"):
            await hf.run(connections=wrong)


async def test_listening_elsewhere_takes_a_connection_of_its_own(pg18: Database) -> None:
    async with Holdfast.connect(pg18.dsn, listen_dsn=pg18.dsn) as hf:
        with pytest.raises(InvalidInput, match="at least 2: listen_dsn"):
            await hf.run(connections=1)


async def test_the_connections_of_a_caller_are_not_ours_to_count(pg18: Database) -> None:
    connection = await asyncpg.connect(pg18.dsn)
    hf = Holdfast.from_asyncpg_connection(connection)
    with pytest.raises(InvalidInput, match=r"Holdfast\.connect\(dsn\)"):
        await hf.run(connections=2)
    await connection.close()
