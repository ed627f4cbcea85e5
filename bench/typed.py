"""What types cost: tasks with a model beside handlers of bytes, and a crowd that waits for results.

`python -m bench.typed` prints each figure with what is asked of it. Everything runs in one process
on one server, in interleaved rounds, so a ratio compares what the same minute of the machine gave.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import asyncpg
import uvloop
from pydantic import BaseModel

from devtools.cluster import Cluster, find_binaries, make_passable
from holdfast import Holdfast, Job, NewJob
from holdfast.cli.work import spare_the_collector

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

_BATCH = 1000
_WAITERS = 1000
_TUNED: dict[str, Any] = {"batch_size": 500, "concurrency": 1000}
_PAYLOAD = b'{"order":{"number":12345,"customer":"ann"}}'
_HOUR = timedelta(hours=1)
_SETTLING_SECONDS = 1.0
_CONNECTED = (
    "select count(*) from pg_stat_activity where datname = current_database()"
    " and backend_type = 'client backend' and pid <> pg_backend_pid()"
)


class Order(BaseModel):
    """The model of the typed jobs."""

    number: int
    customer: str


class Figure(NamedTuple):
    """One line of the answer."""

    name: str
    found: float
    asked: float
    at_most: bool = False

    def __str__(self) -> str:
        good = self.found <= self.asked if self.at_most else self.found >= self.asked
        sign, word = "≤" if self.at_most else "≥", "reached" if good else "not reached"
        return f"{self.name:55} {self.found:8.2f}  asked {sign} {self.asked:g}  {word}"


class Bench:
    """The same jobs, as bytes and as typed tasks."""

    def __init__(self, hf: Holdfast, jobs: int) -> None:
        self._hf = hf
        self._jobs = jobs

        @hf.entrypoint("bytes")
        async def plain(job: Job) -> None: ...

        @hf.task(name="typed")
        async def typed(order: Order) -> int:
            return order.number

        @hf.task(name="stored", store_result=True)
        async def stored(order: Order) -> int:
            return order.number

        self._typed = typed
        self._fill: dict[str, Callable[[Sequence[Order]], Awaitable[object]]] = {
            "bytes": self._bytes,
            "typed": lambda orders: typed.enqueue_many([(order,) for order in orders]),
            "stored": lambda orders: stored.enqueue_many([(order,) for order in orders]),
        }

    async def _bytes(self, orders: Sequence[Order]) -> None:
        await self._hf.queries.enqueue_many([NewJob("bytes", _PAYLOAD)] * len(orders))

    async def enqueue(self, kind: str) -> float:
        """Jobs a second, in batches."""
        fill, began = self._fill[kind], time.perf_counter()
        for first in range(0, self._jobs, _BATCH):
            await fill([Order(number=n, customer="ann") for n in range(first, first + _BATCH)])
        return self._jobs / (time.perf_counter() - began)

    async def drain(self) -> float:
        """Jobs a second."""
        began = time.perf_counter()
        await self._hf.run(mode="drain", signals=False, **_TUNED)
        return self._jobs / (time.perf_counter() - began)

    async def compare(self, rounds: int) -> list[Figure]:
        enqueued: dict[str, list[float]] = {kind: [] for kind in self._fill}
        drained: dict[str, list[float]] = {kind: [] for kind in self._fill}
        for turn in range(rounds + 1):
            for kind in self._fill:
                speeds = await self.enqueue(kind), await self.drain()
                # The first round warms up.
                if turn:
                    enqueued[kind].append(speeds[0])
                    drained[kind].append(speeds[1])
        return [
            Figure("typed bulk enqueue ÷ bytes", _ratio(enqueued, "typed"), 0.7),
            Figure("drain of typed jobs ÷ bytes", _ratio(drained, "typed"), 0.6),
            Figure("drain with stored results ÷ bytes", _ratio(drained, "stored"), 0.5),
        ]


def _ratio(found: dict[str, list[float]], kind: str) -> float:
    """The median of the ratios of each round."""
    pairs = zip(found[kind], found["bytes"], strict=True)
    return statistics.median(one / other for one, other in pairs)


async def wait_in_a_crowd(dsn: str, probes: int) -> list[Figure]:
    """Wake-ups of single jobs, while a thousand others are waited for in the same process."""
    started: dict[int, float] = {}
    ended: dict[int, float] = {}
    async with Holdfast.connect(dsn) as producer, Holdfast.connect(dsn) as worker:

        async def probe(number: int) -> int:
            started[number] = ended[number] = time.perf_counter()
            return number

        task = producer.task(name="probe", store_result=True)(probe)
        worker.task(name="probe", store_result=True)(probe)
        crowd = await task.options(delay=_HOUR).enqueue_many([(-1,)] * _WAITERS)
        waiting = [asyncio.create_task(handle.result()) for handle in crowd]
        await asyncio.sleep(_SETTLING_SECONDS)
        # The worker has opened none yet.
        connections = await _connections(dsn)
        running = asyncio.create_task(worker.run(signals=False))
        starts, wakes = [], []
        for number in range(probes):
            began = time.perf_counter()
            handle = await task.enqueue(number)
            await handle.result()
            over = time.perf_counter()
            starts.append(started[number] - began)
            wakes.append(over - ended[number])
            await asyncio.sleep(0.02)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        worker.shutdown.set()
        await running
    wake, start = statistics.median(wakes) * 1000, statistics.median(starts) * 1000
    print(f"enqueue to handler {start:.2f} ms, handler to waiter {wake:.2f} ms")
    return [
        Figure(f"connections of a process with {_WAITERS} waiters", connections, 5, at_most=True),
        Figure("wake-up of a waiter ÷ enqueue to handler", wake / start, 3, at_most=True),
    ]


async def _connections(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval(_CONNECTED))
    finally:
        await connection.close()


async def measure(dsn: str, jobs: int, rounds: int, probes: int) -> list[Figure]:
    spare_the_collector()
    async with Holdfast.connect(dsn) as hf:
        await hf.install()
        figures = await Bench(hf, jobs).compare(rounds)
    return figures + await wait_in_a_crowd(dsn, probes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000, help="of one drain")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--probes", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        make_passable(Path(directory))
        with Cluster(Path(directory) / "server", binaries=find_binaries()) as server:
            work = measure(server.dsn, given.jobs, given.rounds, given.probes)
            for figure in uvloop.run(work):
                print(figure)


if __name__ == "__main__":
    main()
