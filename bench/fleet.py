"""What a fleet costs: transactions of idle workers and of one job, and how soon a job starts.

`python -m bench.fleet --workers 1 20` prints a line for each size. All workers share this process,
so the times are those of one machine. The transactions are the server's own count.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from devtools.cluster import Cluster, find_binaries, make_passable
from holdfast import Holdfast

if TYPE_CHECKING:
    from holdfast import Job

_SETTLING_SECONDS = 5.0
_COUNTED = (
    "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
)


async def measure(dsn: str, workers: int, jobs: int, idle_seconds: float) -> dict[str, float]:
    """Idle transactions a second, transactions of one job beyond those, and the latency."""
    started: asyncio.Queue[float] = asyncio.Queue()
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(Holdfast.connect(dsn))
        await producer.install()
        for _ in range(workers):
            hf = await stack.enter_async_context(Holdfast.connect(dsn))

            @hf.entrypoint("mail")
            async def mail(job: Job) -> None:
                started.put_nowait(time.perf_counter())

            run = asyncio.create_task(hf.run(signals=False))
            stack.push_async_callback(asyncio.wait, [run])
            stack.callback(hf.shutdown.set)
        await asyncio.sleep(_SETTLING_SECONDS)
        idle = await _rate(dsn, asyncio.sleep(idle_seconds))
        latencies: list[float] = []

        async def produce() -> None:
            for _ in range(jobs):
                began = time.perf_counter()
                await producer.queries.enqueue("mail")
                latencies.append(await started.get() - began)
                await asyncio.sleep(0.05)

        busy_from = time.perf_counter()
        count = await _count(dsn, produce())
        seconds = time.perf_counter() - busy_from
        return {
            "workers": workers,
            "connections": await _connections(dsn),
            "idle_tps": idle,
            "idle_tps_each": idle / workers,
            "transactions_per_job": (count - idle * seconds) / jobs,
            "p50_ms": statistics.median(latencies) * 1000,
            "p99_ms": statistics.quantiles(latencies, n=100)[98] * 1000,
        }


async def _connections(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(
            await connection.fetchval(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and backend_type = 'client backend' and pid <> pg_backend_pid()"
            )
        )
    finally:
        await connection.close()


async def _count(dsn: str, work: object) -> int:
    """Transactions of the database while the work goes on."""
    connection = await asyncpg.connect(dsn)
    try:
        before = await _transactions(connection)
        await work  # type: ignore[misc]
        return await _transactions(connection) - before
    finally:
        await connection.close()


async def _transactions(connection: asyncpg.Connection[asyncpg.Record]) -> int:
    # Sessions report their counts with a delay of up to a second, when they are idle.
    await asyncio.sleep(1.5)
    await connection.execute("select pg_stat_clear_snapshot()")
    return int(await connection.fetchval(_COUNTED))


async def _rate(dsn: str, work: object) -> float:
    began = time.perf_counter()
    count = await _count(dsn, work)
    return count / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 20])
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--idle", type=float, default=15.0, help="seconds")
    given = parser.parse_args()
    for workers in given.workers:
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory) / "server"
            make_passable(Path(directory))
            settings = {"max_connections": "500"}
            with Cluster(place, binaries=find_binaries(), settings=settings) as server:
                found = asyncio.run(measure(server.dsn, workers, given.jobs, given.idle))
        print("  ".join(f"{name} {value:.2f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
