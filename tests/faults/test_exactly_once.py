"""What handlers write in ctx.transaction() happens once, however workers die or freeze."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from holdfast import Holdfast
from tests.faults.crew import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers import Database

ROOT = Path(__file__).parents[2]
JOBS = 300
KILLS = 8


class Counting:
    """A queue, a table of counts, and workers in processes of their own."""

    def __init__(self, dsn: str, hf: Holdfast, connection: Any) -> None:
        self.hf = hf
        self.connection = connection
        self._dsn = dsn
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.faults.counting_worker", self._dsn, *words]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        self.processes.append(process)
        return process

    async def counted(self) -> int:
        return int(await self.connection.fetchval("select count(*) from counts"))

    async def is_over(self) -> bool:
        return await self.hf.queries.queue_size() == []


@pytest.fixture
async def counting(pg18: Database) -> AsyncIterator[Counting]:
    async with Holdfast.connect(pg18.dsn) as hf:
        await hf.install()
        connection = await asyncpg.connect(pg18.dsn)
        await connection.execute("create table counts (job_id bigint)")
        found = Counting(pg18.dsn, hf, connection)
        yield found
        for process in found.processes:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        await connection.close()


@pytest.mark.timeout(240)
async def test_jobs_count_once_while_workers_are_killed(counting: Counting) -> None:
    await counting.hf.queries.enqueue(["count"] * JOBS)
    workers = [counting.start() for _ in range(2)]
    for kill in range(KILLS):
        before = await counting.counted()
        # Each time some work was done, or the worker that is killed has not begun.
        target = min(JOBS, before + random.randrange(1, 2 * JOBS // KILLS))

        async def worked(target: int = target) -> bool:
            return await counting.counted() >= target

        await eventually(worked, 120)
        workers[kill % 2].kill()
        workers[kill % 2] = counting.start()
    await eventually(counting.is_over, 120)
    assert await counting.counted() == JOBS
    assert await counting.connection.fetchval("select count(distinct job_id) from counts") == JOBS


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("bug", "times"), [((), 1), (("unfenced",), 2)])
async def test_a_worker_that_slept_through_its_lease_commits_nothing(
    counting: Counting, tmp_path: Path, bug: tuple[str, ...], times: int
) -> None:
    gate = tmp_path / "gate"
    sleeper = counting.start("gated", *bug)
    [job_id] = await counting.hf.queries.enqueue("count", str(gate).encode())
    assert sleeper.stdout is not None
    assert await asyncio.to_thread(sleeper.stdout.readline) == b"waits\n"
    sleeper.send_signal(signal.SIGSTOP)
    counting.start()
    await eventually(counting.is_over, 120)
    assert await counting.counted() == 1
    gate.touch()
    sleeper.send_signal(signal.SIGCONT)

    async def reported() -> bool:
        """Its transaction is over, with or without its count."""
        open_ones = await counting.connection.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database()"
            " and xact_start is not null and pid <> pg_backend_pid()"
        )
        return int(open_ones) == 0

    await eventually(reported, 120)
    # Without the token in its commit the same job would have counted twice.
    assert await counting.counted() == times
    [(_, status)] = await counting.hf.queries.job_status([job_id])
    assert status == "successful"
