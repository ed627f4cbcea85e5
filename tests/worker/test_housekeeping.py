"""A worker keeps the statistics by itself, and no job waits for it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import asyncpg

from holdfast import Holdfast, Job, WorkerInfo
from holdfast.settings import WorkerSettings
from tests.worker.workers import ends, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from tests.servers import Database

OFTEN = WorkerSettings(statistics_interval=timedelta(milliseconds=20))


@asynccontextmanager
async def counting(hf: Holdfast) -> AsyncIterator[None]:
    """A worker that counts all the time."""
    run = asyncio.create_task(hf.queue_manager.run(OFTEN))
    try:
        yield
    finally:
        hf.shutdown.set()
        await ends(run)


async def test_a_worker_counts_what_became_of_its_jobs(hf: Holdfast) -> None:
    @hf.entrypoint("one")
    async def one(job: Job) -> None: ...

    async def counted() -> bool:
        if await hf.store.jobs.uncounted(timedelta(hours=-1)):
            return False
        found = await hf.store.jobs.statistics(since=None, limit=10)
        return [(each.entrypoint, each.status, each.count) for each in found] == [
            ("one", "successful", 3)
        ]

    async with counting(hf):
        await hf.queries.enqueue(["one"] * 3)
        await eventually(counted)


async def test_no_job_waits_for_the_counting(pg18: Database) -> None:
    """Which is stuck here, because another transaction has locked the statistics."""
    done = asyncio.Queue[bytes | None]()
    async with Holdfast.connect(pg18.dsn) as hf:
        await hf.install()

        @hf.entrypoint("one")
        async def one(job: Job) -> None:
            done.put_nowait(job.payload)

        other = await asyncpg.connect(pg18.dsn)

        async def stuck() -> bool:
            return await other.fetchval(
                "select exists (select from pg_locks"
                " where relation = 'holdfast_statistics'::regclass and not granted)"
            )

        try:
            async with counting(hf):
                await hf.queries.enqueue("one", b"first")
                assert await done.get() == b"first"
                async with other.transaction():
                    await other.execute("lock table holdfast_statistics")
                    await eventually(stuck)
                    await hf.queries.enqueue("one", b"second")
                    async with asyncio.timeout(60):
                        assert await done.get() == b"second"
                    assert await stuck()
        finally:
            await other.close()


async def test_a_name_that_no_worker_serves_is_warned_of_once(
    pg18: Database, caplog: pytest.LogCaptureFixture
) -> None:
    now = datetime.now(UTC)
    worker = WorkerInfo("one", "host", 1, "0", ["confirm_order"], 20, 0, "running", now, now)
    async with Holdfast.connect(pg18.dsn) as hf:
        await hf.install()
        await hf.queries.enqueue(["confrim_order", "confirm_order", "confrim_order", "zzz"])
        await hf.store.leases.housekeep()
        assert caplog.messages == []
        assert hf.store.reports is not None
        await hf.store.reports.report(worker)
        for _ in range(2):
            await hf.store.leases.housekeep()
    assert caplog.messages == [
        "jobs wait under the name 'confrim_order', which no live worker serves; "
        "did you mean 'confirm_order'?",
        "jobs wait under the name 'zzz', which no live worker serves; start one that registers it",
    ]
