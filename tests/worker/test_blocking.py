"""A handler that blocks the event loop costs its neighbours time, never a second run."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg

from holdfast import Holdfast, Job, Status
from tests.worker.workers import Watch, ending, ends, eventually, working

if TYPE_CHECKING:
    import pytest

    from tests.servers import Database

LEASE = 2.0
_AGE = (
    "select extract(epoch from clock_timestamp() - heartbeat)::float8 from holdfast where id = %s"
)


def block_and_look(dsn: str, job_id: int) -> list[float]:
    """Keep the event loop from turning for three leases; the ages of the job's heartbeat."""
    ages = []
    until = time.monotonic() + 3 * LEASE
    with psycopg.connect(dsn, autocommit=True) as connection:
        while time.monotonic() < until:
            found = connection.execute(_AGE, [job_id]).fetchone()
            assert found is not None, "its outcome cannot be written while the log is locked"
            ages.append(found[0])
            time.sleep(0.05)
    return ages


async def test_the_lease_of_a_finished_job_is_kept_while_another_blocks_the_event_loop(
    pg18: Database, pg_hf: Holdfast, witness: Any
) -> None:
    started, finish, block = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event()
    ages: list[float] = []
    watch = Watch(pg_hf)

    @pg_hf.entrypoint("finishes")
    async def finishes(job: Job) -> None:
        started.release()
        await finish.wait()

    @pg_hf.entrypoint("blocks")
    async def blocks(job: Job) -> None:
        started.release()
        await block.wait()
        ages.extend(block_and_look(pg18.dsn, finishing))

    async def outcome_waits() -> bool:
        return await witness.fetchval(
            "select exists (select from pg_locks where not granted"
            " and relation = 'holdfast_log'::regclass)"
        )

    finishing, _ = await pg_hf.queries.enqueue(["finishes", "blocks"])
    async with working(pg_hf, heartbeat_timeout=timedelta(seconds=LEASE)):
        for _ in range(2):
            await ends(started.acquire())
        async with witness.transaction():
            await witness.execute("lock table holdfast_log in share row exclusive mode")
            finish.set()
            await eventually(outcome_waits)
            block.set()
            while not ages:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await watch.until_settled(2)

    assert max(ages) < LEASE
    entry = await ending(pg_hf, finishing)
    assert (entry.status, entry.recoveries) == (Status.SUCCESSFUL, 0)


async def test_a_lease_is_not_renewed_for_a_handler_that_blocks_for_too_long(
    pg18: Database, pg_hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    """The outcome of its neighbour, which the blocked loop cannot write, is written."""
    seen: list[str] = []
    ended = asyncio.Event()
    oldest, watch = 0.0, Watch(pg_hf)

    @pg_hf.entrypoint("finishes")
    async def finishes(job: Job) -> None:
        await block.wait()
        ended.set()

    @pg_hf.entrypoint("blocks")
    async def blocks(job: Job) -> None:
        nonlocal oldest
        if job.recoveries:
            return
        block.set()
        await ended.wait()
        until = time.monotonic() + 30
        with psycopg.connect(pg18.dsn, autocommit=True) as connection:
            while oldest < 2 * LEASE and time.monotonic() < until:
                found = connection.execute(_AGE, [job.id]).fetchone()
                assert found is not None
                oldest = max(oldest, found[0])
                time.sleep(0.05)  # noqa: ASYNC251 - it is meant to block
            seen.extend(
                status
                for (status,) in connection.execute(
                    "select status::text from holdfast_log where job_id = %s", [finishing]
                )
            )

    block = asyncio.Event()
    finishing, blocking = await pg_hf.queries.enqueue(["finishes", "blocks"])
    limits = {"heartbeat_timeout": LEASE, "max_loop_block": 1.0}
    spans = {name: timedelta(seconds=value) for name, value in limits.items()}
    async with working(pg_hf, **spans):
        await watch.until(lambda: any(job.id == blocking for job, _, _ in watch.settled))

    assert oldest >= 2 * LEASE, "it was renewed"
    assert seen == [Status.SUCCESSFUL]
    assert f"the handler of 'blocks' (job {blocking}) has blocked the event loop" in caplog.text
    assert "in blocks: " in caplog.text
    assert len(await pg_hf.queries.job_history(finishing)) == 1
