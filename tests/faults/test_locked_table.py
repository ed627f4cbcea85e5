"""A transaction locks the jobs' table for long: connections stay within the plan, work goes on."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Literal

import asyncpg
import pytest

from holdfast import Holdfast, HoldfastError, Job, NewJob

if TYPE_CHECKING:
    from tests.servers import Database

WORKERS = 6
TIMEOUT = 0.7
LOCKED_SECONDS = 6.0
BACKENDS = """
select application_name, count(*) from pg_stat_activity
where datname = current_database() and application_name like 'holdfast:%' group by 1
"""


async def most_backends(witness: Any, seconds: float) -> Counter[str]:
    """For each purpose the most connections that were seen at one time."""
    most: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        for name, count in await witness.fetch(BACKENDS):
            most[name] = max(most[name], count)
        await asyncio.sleep(0.05)
    return most


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
async def test_a_locked_table_costs_no_connections(
    library: Literal["asyncpg", "psycopg"], pg18: Database
) -> None:
    done: set[bytes] = set()

    async def mail(job: Job) -> None:
        done.add(job.payload or b"")

    async def produce(hf: Holdfast) -> None:
        while True:
            with suppress(HoldfastError):
                await hf.queries.enqueue("mail", b"between", dedupe_key="between")
            await asyncio.sleep(0.01)

    async with AsyncExitStack() as stack:
        fleet = [
            await stack.enter_async_context(
                Holdfast.connect(pg18.dsn, driver=library, timeout=TIMEOUT)
            )
            for _ in range(WORKERS + 1)
        ]
        producer, *workers = fleet
        await producer.install()
        for hf in workers:
            hf.entrypoint("mail")(mail)
        tasks = [asyncio.create_task(hf.run(signals=False)) for hf in workers]
        tasks.append(asyncio.create_task(produce(producer)))
        await producer.queries.enqueue_many([NewJob("mail", b"%d" % n) for n in range(50)])
        witness, locker = [await asyncpg.connect(pg18.dsn) for _ in range(2)]
        async with asyncio.timeout(100):
            while len(done) < 50:  # noqa: ASYNC110 (handlers of several workers)
                await asyncio.sleep(0.01)
        async with locker.transaction():
            await locker.execute("lock table holdfast")
            most = await most_backends(witness, LOCKED_SECONDS)
        # What the plan gives, however many statements were given up: two connections for the
        # statements of a worker, one for those of the producer.
        assert max(most.values()) <= 2 * WORKERS + 1, most
        done.clear()
        await producer.queries.enqueue_many([NewJob("mail", b"%d" % n) for n in range(50)])
        async with asyncio.timeout(100):
            while len(done - {b"between"}) < 50:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await witness.close()
        await locker.close()
