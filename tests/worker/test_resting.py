"""Producers wake a worker that rests, and spare themselves that while it looks all the time."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from secrets import token_hex
from typing import TYPE_CHECKING

import asyncpg
import pytest

from holdfast import Holdfast
from holdfast.settings import Names, own_channel
from tests.worker.workers import PATIENCE, ends, eventually, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from holdfast import Job
    from tests.servers import Database
    from tests.worker.conftest import NewWorker

HOUR = timedelta(hours=1)
NEEDED = """
select exists (
    select from pg_locks
    where locktype = 'advisory' and mode = 'ShareLock' and granted
      and database = (select oid from pg_database where datname = current_database())
      and (classid::bigint << 32) + objid::bigint
          = hashtextextended('listeners of ' || $1::text, 0)
)
"""


class Ear:
    """Hears every NOTIFY of a queue, and needs none."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record], channel: str) -> None:
        self.heard = 0
        self._connection = connection
        self._channel = channel

    async def open(self) -> None:
        await self._connection.add_listener(self._channel, self._hear)

    async def listen_for(self, worker: str) -> None:
        """Hear what is meant for one worker, too."""
        await self._connection.add_listener(own_channel(self._channel, worker), self._hear)

    async def flush(self) -> int:
        """What was sent until now has arrived with the answer to a question."""
        await self._connection.fetch("select 1")
        return self.heard

    async def needed(self) -> bool:
        return bool(await self._connection.fetchval(NEEDED, self._channel))

    def _hear(self, *_: object) -> None:
        self.heard += 1


@pytest.fixture
def names() -> Names:
    """Of tables whose channel no other session in the database has."""
    return Names(f"rest_{token_hex(4)}")


@pytest.fixture
async def new_pg_worker(pg18: Database, names: Names) -> AsyncIterator[NewWorker]:
    async with AsyncExitStack() as stack:
        made: list[Holdfast] = []

        def make() -> Holdfast:
            made.append(Holdfast.connect(pg18.dsn, prefix=names.prefix))
            stack.push_async_callback(made[-1].store.close)
            return made[-1]

        await make().install()
        yield make


@pytest.fixture
async def ear(pg18: Database, names: Names) -> AsyncIterator[Ear]:
    connection = await asyncpg.connect(pg18.dsn)
    found = Ear(connection, names.channel)
    await found.open()
    try:
        yield found
    finally:
        await connection.close(timeout=5)


async def test_no_notification_is_sent_while_no_worker_listens(
    new_pg_worker: NewWorker, ear: Ear
) -> None:
    await new_pg_worker().queries.enqueue("a")
    assert await ear.flush() == 0


async def test_a_listener_is_told_until_it_needs_it_no_more(
    new_pg_worker: NewWorker, ear: Ear
) -> None:
    producer, listener = new_pg_worker(), new_pg_worker()
    ready = asyncio.Event()
    listening = asyncio.create_task(listener.store.wakeups.listen(ready.set, lambda _id: None))
    await ends(ready.wait())

    heard = []
    for needed in (None, False, True, True, False):
        if needed is not None:
            await listener.store.wakeups.need(needed=needed)
        await producer.queries.enqueue("a")
        heard.append(await ear.flush())
    assert heard == [1, 1, 2, 3, 3]

    await listener.store.wakeups.need(needed=True)
    listening.cancel()
    await asyncio.wait([listening])
    await listener.store.close()
    await eventually(lambda: _not_needed(ear))
    await producer.queries.enqueue("a")
    assert await ear.flush() == 3


async def test_an_idle_worker_is_woken_and_a_busy_one_need_not_be(
    new_pg_worker: NewWorker, ear: Ear
) -> None:
    worker, producer = new_pg_worker(), new_pg_worker()
    done, told = 0, asyncio.Event()

    @worker.entrypoint("a")
    async def a(job: Job) -> None:
        nonlocal done
        done += 1
        told.set()

    async with working(worker, dequeue_timeout=HOUR):
        await eventually(ear.needed)
        await ear.listen_for(worker.queue_manager.id)
        await producer.queries.enqueue("a")
        await ends(told.wait())
        assert await ear.flush() == 1

        sent = 1
        async with asyncio.timeout(PATIENCE):
            # Fast enough to be busy with, until an enqueue is not told.
            while await ear.flush() == sent:
                await producer.queries.enqueue(["a"] * 20)
                sent += 1
        await eventually(lambda: _held(lambda: done == 1 + 20 * (sent - 1)))


async def test_an_enqueue_that_commits_after_the_worker_went_to_rest_is_found(
    new_pg_worker: NewWorker, ear: Ear, pg18: Database
) -> None:
    """It began while the worker was busy, so it sent no NOTIFY."""
    worker, producer = new_pg_worker(), new_pg_worker()
    found = asyncio.Event()

    @worker.entrypoint("filler")
    async def filler(job: Job) -> None:
        await asyncio.sleep(0)

    @worker.entrypoint("late")
    async def late(job: Job) -> None:
        found.set()

    connection = await asyncpg.connect(pg18.dsn)
    try:
        async with working(worker, dequeue_timeout=HOUR), asyncio.timeout(PATIENCE):
            await eventually(ear.needed)
            while await ear.needed():
                await producer.queries.enqueue(["filler"] * 50)
            async with connection.transaction():
                await producer.queries.on(connection).enqueue("late")
                await eventually(ear.needed)
            await found.wait()
    finally:
        await connection.close(timeout=5)


async def _not_needed(ear: Ear) -> bool:
    return not await ear.needed()


async def _held(question: Callable[[], bool]) -> bool:
    return question()
