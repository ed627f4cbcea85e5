"""An enqueue wakes as many sleeping workers as there is work for, and no others."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from holdfast import Holdfast, Job
from holdfast.clock import monotonic
from holdfast.settings import own_channel
from holdfast.worker.quarantine import Suspects
from tests.worker.test_quarantine import die_with
from tests.worker.workers import PATIENCE, eventually, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers import Database

HOUR = timedelta(hours=1)
LISTED = """
    select w.id from holdfast_workers w
    where exists (
        select from pg_locks
        where locktype = 'advisory' and mode = 'ShareLock' and granted
          and database = (select oid from pg_database where datname = current_database())
          and (classid::bigint << 32) + objid::bigint
              = hashtextextended('listeners of ch_holdfast ' || w.id, 0)
    )
"""


class Fleet:
    """Workers of one queue that never poll: what they run, they were woken for."""

    def __init__(self, dsn: str, connection: Any) -> None:
        self.connection = connection
        self.ran: list[tuple[int, int]] = []
        """The worker and the job of each run, in order."""
        self.heard: list[tuple[int, str]] = []
        """The session that sent each wake-up, and the worker it is for; empty for all."""
        self.release = asyncio.Event()
        self.release.set()
        self._dsn = dsn

    @asynccontextmanager
    async def workers(self, count: int, *entrypoints: str, **settings: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            before = len(await self.listed())
            for number in range(count):
                hf = await stack.enter_async_context(Holdfast.connect(self._dsn))
                for entrypoint in entrypoints:
                    hf.entrypoint(entrypoint)(self.handler(number))
                await stack.enter_async_context(working(hf, dequeue_timeout=HOUR, **settings))

            async def all_listed() -> bool:
                return len(await self.listed()) == before + count

            await eventually(all_listed)
            yield

    def handler(self, number: int) -> Any:
        async def handle(job: Job) -> None:
            self.ran.append((number, job.id))
            await self.release.wait()

        return handle

    async def listed(self) -> list[str]:
        """Workers that producers can see."""
        return [row[0] for row in await self.connection.fetch(LISTED)]

    async def listen(self) -> None:
        for worker in ("", *await self.listed()):
            channel = own_channel("ch_holdfast", worker) if worker else "ch_holdfast"
            await self.connection.add_listener(channel, self._hearing(worker))

    def _hearing(self, worker: str) -> Any:
        return lambda _connection, sender, *_: self.heard.append((sender, worker))

    async def sleeps(self, workers: int, *, runs: int) -> None:
        """Wait until that many jobs have run and that many workers sleep again."""
        await self.runs(runs)

        async def all_listed() -> bool:
            return len(await self.listed()) == workers

        await eventually(all_listed)

    async def runs(self, count: int) -> None:
        async def reached() -> bool:
            return len(self.ran) >= count

        await eventually(reached)


@pytest.fixture
async def fleet(pg: Database) -> AsyncIterator[Fleet]:
    async with Holdfast.connect(pg.dsn) as hf:
        await hf.install()
    connection = await asyncpg.connect(pg.dsn)
    try:
        yield Fleet(pg.dsn, connection)
    finally:
        await connection.close(timeout=5)


async def test_one_job_wakes_one_worker(fleet: Fleet, pg: Database) -> None:
    """The others do not even receive the message, which would cost their processes a wake-up."""
    async with fleet.workers(5, "mail"), Holdfast.connect(pg.dsn) as producer:
        await fleet.listen()
        for count in range(1, 11):
            await producer.queries.enqueue("mail")
            await fleet.runs(count)
        assert len(fleet.heard) == 10
        assert {worker for _, worker in fleet.heard} <= set(await fleet.listed())


async def test_the_trigger_of_raw_inserts_leaves_an_enqueue_to_wake_one_worker(
    fleet: Fleet, pg: Database
) -> None:
    connection = fleet.connection
    insert = "insert into holdfast (entrypoint) values ('mail')"
    async with fleet.workers(2, "mail"), Holdfast.connect(pg.dsn) as producer:
        await producer.install(notify_inserts=True, functions=True)
        await fleet.listen()
        await producer.queries.enqueue("mail", execute_after=HOUR)
        await producer.queries.enqueue("mail")
        await fleet.sleeps(2, runs=1)
        await producer.queries.enqueue(["mail"] * 2)
        await fleet.sleeps(2, runs=3)
        await connection.execute("select holdfast_enqueue('mail')")
        await fleet.sleeps(2, runs=4)
        assert len(fleet.heard) == 3
        assert "" not in {worker for _, worker in fleet.heard}, "that would be for all"
        # What others insert in the same transaction wakes all the same.
        async with connection.transaction():
            await producer.queries.on(connection).enqueue("mail")
            await connection.execute(insert)
        await fleet.sleeps(2, runs=6)
        assert [worker for _, worker in fleet.heard].count("") == 1


@pytest.mark.parametrize("suspects", [Suspects.run, Suspects.only])
async def test_a_worker_that_runs_a_suspect_is_not_woken(
    fleet: Fleet, pg: Database, suspects: Suspects
) -> None:
    fleet.release.clear()
    async with Holdfast.connect(pg.dsn) as aside, Holdfast.connect(pg.dsn) as producer:
        for entrypoint in ("mail", "suspect"):
            aside.entrypoint(entrypoint)(fleet.handler(0))
        aside.queue_manager.treat_suspects(suspects)
        await die_with(producer, "suspect", deaths=2)
        async with working(aside, dequeue_timeout=HOUR):
            await fleet.runs(1)
            async with fleet.workers(1, "mail"):
                for count in range(2, 12):
                    await producer.queries.enqueue("mail")
                    await fleet.runs(count)
                # The handlers end, so neither worker waits for them at its stop.
                fleet.release.set()


async def test_a_wake_up_for_all_is_not_passed_on_without_end(fleet: Fleet, pg: Database) -> None:
    """The worker that runs a suspect hears what it passes on, and no other worker is there."""
    fleet.release.clear()
    async with Holdfast.connect(pg.dsn) as aside:
        aside.entrypoint("suspect")(fleet.handler(0))
        await die_with(aside, "suspect", deaths=2)
        async with working(aside, dequeue_timeout=HOUR):
            await fleet.runs(1)
            key = "hashtextextended('listeners of ch_holdfast', 0)"
            await fleet.connection.execute(f"select pg_advisory_lock_shared({key})")
            await fleet.listen()
            began = monotonic()
            for _ in range(200):
                await fleet.connection.execute("notify ch_holdfast")
            passed_on = len(fleet.heard) - 200
            assert passed_on <= 2 + (monotonic() - began) / 0.5
            fleet.release.set()


async def test_only_workers_that_serve_the_entrypoint_are_woken(fleet: Fleet, pg: Database) -> None:
    async with (
        fleet.workers(3, "mail"),
        fleet.workers(1, "sms"),
        Holdfast.connect(pg.dsn) as producer,
    ):
        for count in range(1, 6):
            await producer.queries.enqueue("sms")
            await fleet.runs(count)


async def test_a_batch_wakes_as_many_workers_as_it_fills(fleet: Fleet, pg: Database) -> None:
    async with fleet.workers(5, "mail", concurrency=10):
        await fleet.listen()
        async with Holdfast.connect(pg.dsn) as producer:
            await producer.queries.enqueue(["mail"] * 25, [None] * 25, [0] * 25)
            await fleet.runs(25)
        producing = fleet.heard[0][0]
        assert len({worker for sender, worker in fleet.heard if sender == producing}) == 3


async def test_a_full_worker_is_left_out_and_its_neighbour_woken(
    fleet: Fleet, pg: Database
) -> None:
    fleet.release.clear()
    async with fleet.workers(3, "mail", concurrency=1), Holdfast.connect(pg.dsn) as producer:
        for count in range(1, 4):
            await producer.queries.enqueue("mail")
            await fleet.runs(count)
        assert Counter(worker for worker, _ in fleet.ran) == {0: 1, 1: 1, 2: 1}

        async def none_listed() -> bool:
            return not await fleet.listed()

        await eventually(none_listed)
        await producer.queries.enqueue("mail")
        fleet.release.set()
        await fleet.runs(4)


SLEEPER = """
import asyncio, sys
from datetime import timedelta
from holdfast import Holdfast

async def main():
    async with Holdfast.connect(sys.argv[1]) as hf:
        @hf.entrypoint("mail")
        async def mail(job):
            pass
        await hf.run(dequeue_timeout=timedelta(hours=1))

asyncio.run(main())
"""


async def test_a_sleeper_that_died_is_not_chosen(fleet: Fleet, pg: Database) -> None:
    """Its row among the workers stays for an hour, its lock goes with its session."""
    dead = await asyncio.create_subprocess_exec(sys.executable, "-c", SLEEPER, pg.dsn)

    async def sleeps() -> bool:
        return len(await fleet.listed()) == 1

    try:
        await eventually(sleeps)
        async with fleet.workers(1, "mail"):
            os.kill(dead.pid, signal.SIGKILL)
            await dead.wait()
            await eventually(sleeps)
            async with Holdfast.connect(pg.dsn) as producer:
                for count in range(1, 6):
                    await producer.queries.enqueue("mail")
                    await fleet.runs(count)
    finally:
        if dead.returncode is None:
            dead.kill()
            await dead.wait()


async def test_a_wake_up_comes_with_the_commit_and_not_before(fleet: Fleet, pg: Database) -> None:
    """Sent before, it would be spent on a claim that cannot see the job yet."""
    async with fleet.workers(1, "mail"):
        connection = await asyncpg.connect(pg.dsn)
        try:
            async with connection.transaction(), Holdfast.connect(pg.dsn) as producer:
                await producer.queries.on(connection).enqueue("mail")
                rounds = await fleet.connection.fetchval("select count(*) from holdfast")
                assert (rounds, fleet.ran) == (0, [])
            async with asyncio.timeout(PATIENCE):
                await fleet.runs(1)
        finally:
            await connection.close(timeout=5)
