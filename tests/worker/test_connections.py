"""A mixed workload runs to its end through every way to reach the queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import psycopg
import pytest

from holdfast import Holdfast, Job, RetryRequested, Status
from tests.worker.workers import Gauge, ends, eventually, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.servers import Database
    from tests.worker.conftest import NewWorker

KINDS = ["asyncpg", "asyncpg_pool", "psycopg", "psycopg_manual", "asyncpg_dsn", "psycopg_dsn"]


@asynccontextmanager
async def opened(kind: str, database: Database) -> AsyncIterator[Holdfast]:
    async with AsyncExitStack() as stack:
        match kind:
            case "asyncpg":
                connection = await asyncpg.connect(database.dsn)
                stack.push_async_callback(connection.close)
                yield Holdfast.from_asyncpg_connection(connection)
            case "asyncpg_pool":
                pool = asyncpg.create_pool(database.dsn, min_size=1, max_size=4)
                yield Holdfast.from_asyncpg_pool(await stack.enter_async_context(pool))
            case "psycopg" | "psycopg_manual":
                mine = await psycopg.AsyncConnection.connect(
                    database.dsn, autocommit=kind == "psycopg"
                )
                yield Holdfast.from_psycopg_connection(await stack.enter_async_context(mine))
            case _:
                library = "asyncpg" if kind == "asyncpg_dsn" else "psycopg"
                hf = Holdfast.connect(database.dsn, driver=library)  # type: ignore[arg-type]
                yield await stack.enter_async_context(hf)


BATCH = {"fine": 60, "retried": 10, "bad": 5, "held": 5, "limited": 12, "thread": 4, "later": 3}
ENDINGS = {
    ("fine", "successful"): 60,
    ("retried", "queued"): 20,
    ("retried", "successful"): 10,
    ("bad", "exception"): 5,
    ("held", "failed"): 5,
    ("limited", "successful"): 12,
    ("thread", "successful"): 4,
    ("later", "successful"): 3,
}
"""How many log rows of which kind the batch leaves."""


class Mixture:
    """Jobs of every kind, and what must have become of each kind."""

    def __init__(self, *workers: Holdfast) -> None:
        self.limited = Gauge()
        for hf in workers:
            self._register(hf)

    def _register(self, hf: Holdfast) -> None:
        @hf.entrypoint("fine")
        @hf.entrypoint("later")
        async def fine(job: Job) -> None:
            await asyncio.sleep(0.001)

        @hf.entrypoint("retried")
        async def retried(job: Job) -> None:
            if job.attempts < 2:
                raise RetryRequested(timedelta(milliseconds=20 * job.attempts))

        @hf.entrypoint("bad")
        async def bad(job: Job) -> None:
            raise ValueError("bad")

        @hf.entrypoint("held", on_failure="hold")
        async def held(job: Job) -> None:
            raise ValueError("bad")

        @hf.entrypoint("limited", concurrency_limit=2)
        async def limited(job: Job) -> None:
            with self.limited:
                await asyncio.sleep(0.001)

        @hf.entrypoint("thread", executor="thread")
        def thread(job: Job) -> None:
            return None

    async def enqueue(self, hf: Holdfast) -> None:
        soon = timedelta(milliseconds=300)
        for name, count in BATCH.items():
            delays = [soon if name == "later" else None] * count
            await hf.queries.enqueue([name] * count, execute_after=delays)

    async def until_done(self, hf: Holdfast) -> None:
        async def done() -> bool:
            sizes = await hf.queries.queue_size()
            return {size.status for size in sizes} == {Status.FAILED}

        await eventually(done)

    async def check(self, workers: Sequence[Holdfast]) -> None:
        log = await workers[0].queries.queue_log(limit=1000)
        assert Counter((entry.entrypoint, str(entry.status)) for entry in log) == ENDINGS
        assert self.limited.most <= 2
        assert {entry.claimed_by for entry in log} <= {hf.queue_manager.id for hf in workers}


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_connection_serves_a_worker(pg18: Database, kind: str) -> None:
    async with opened(kind, pg18) as hf:
        await hf.install()
        mixture = Mixture(hf)
        async with working(hf, dequeue_timeout=timedelta(seconds=1)):
            await mixture.enqueue(hf)
            await mixture.until_done(hf)
        await mixture.check([hf])


async def test_several_workers_in_one_event_loop_share_the_work(new_worker: NewWorker) -> None:
    workers = [new_worker() for _ in range(3)]
    mixture = Mixture(*workers)
    async with AsyncExitStack() as stack:
        for hf in workers:
            await stack.enter_async_context(
                working(hf, dequeue_timeout=timedelta(seconds=1), concurrency=10)
            )
        await mixture.enqueue(workers[0])
        await mixture.until_done(workers[0])
    await mixture.check(workers)


async def test_every_server_serves_a_worker(pg: Database) -> None:
    async with Holdfast.connect(pg.dsn) as hf:
        await hf.install()
        mixture = Mixture(hf)
        await mixture.enqueue(hf)
        async with working(hf):
            await mixture.until_done(hf)
        await mixture.check([hf])


async def test_handlers_that_hold_the_whole_pool_do_not_lose_their_leases(pg18: Database) -> None:
    async with (
        asyncpg.create_pool(pg18.dsn, min_size=1, max_size=6) as pool,
        Holdfast.connect(pg18.dsn) as hf,
    ):
        await hf.install()

        @hf.entrypoint("greedy")
        async def greedy(job: Job) -> None:
            async with pool.acquire() as connection:
                await connection.fetchval("select pg_sleep(0.3)")

        await hf.queries.enqueue(["greedy"] * 50)
        lease = timedelta(seconds=1.5)
        await ends(hf.run(mode="drain", heartbeat_timeout=lease, concurrency=50))

        log = await hf.queries.queue_log(limit=1000)
        assert [(entry.status, entry.recoveries) for entry in log] == [("successful", 0)] * 50
