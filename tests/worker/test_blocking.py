"""A handler that blocks the event loop costs its neighbours time, never a second run."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg

from holdfast import Holdfast, Job, Status
from tests.worker.rig import Watch, ending, ends, eventually, working

if TYPE_CHECKING:
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
