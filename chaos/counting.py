"""Tasks that count in their handlers' transactions: the count and the end of a job are one commit.

They have Holdfast tables of their own, which the checker of histories does not look at.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from chaos.files import SECOND, now, read_all
from holdfast import Context, Holdfast, Retry, exponential
from holdfast.events import Event, Lost

if TYPE_CHECKING:
    from chaos.cluster import Cluster
    from chaos.handlers import Ledger
    from chaos.stage import Stage

SCHEMA = "counting"
_SLOTS = 64
"""Rows of the counter, so that a worker that is frozen in its transaction stops few others."""

_DDL = f"""
create table counting.counter (slot integer primary key, n bigint not null);
insert into counting.counter select s, 0 from generate_series(0, {_SLOTS - 1}) s;
create table counting.written (by text not null);
"""

WORKER: dict[str, Any] = {"counting": True, "concurrency": 5, "batch_size": 20, "poll": 0.2}
"""Options of a worker that serves these tasks alone."""

_GATE_SECONDS = 0.01
_OFTEN = Retry(1_000, exponential(timedelta(seconds=0.05), timedelta(seconds=1)))
"""An outage of the server must not end a job."""


def connect(dsn: str, **options: Any) -> Holdfast:
    return Holdfast.connect(dsn, schema=SCHEMA, **options)


class Tasks:
    """What the workers run. Each says by its worker's name who has written something."""

    def __init__(self, hf: Holdfast, ledger: Ledger | None = None, me: str = "") -> None:
        self._ledger = ledger
        self._me = me
        hf.observe(self)
        self.count = hf.task(name="count", retry=_OFTEN, store_result=True, max_recoveries=1_000)(
            self.run_count
        )
        self.late = hf.task(name="late", retry=_OFTEN, store_result=True, max_recoveries=1_000)(
            self.run_late
        )

    def notify(self, event: Event) -> None:
        if isinstance(event, Lost):
            self._note("uncounted")

    def _note(self, event: str) -> None:
        if self._ledger is not None:
            self._ledger.note(event, me=self._me, pid=os.getpid())

    async def run_count(self, context: Context, number: int) -> str:
        await context.progress(0.5, self._me)
        async with context.transaction() as tx:
            await tx.execute(
                "update counting.counter set n = n + 1 where slot = $1", number % _SLOTS
            )
        return self._me

    async def run_late(self, context: Context, what: str) -> str:
        """The first run blocks its event loop at the gate, so that it cannot be cancelled."""
        if what == "transaction":
            async with context.transaction() as tx:
                await tx.execute("insert into counting.written values ($1)", self._me)
                await self._gate(context)
        elif what == "progress":
            await self._say(context)
        else:
            await self._gate(context)
        return self._me

    async def _say(self, context: Context) -> None:
        """The second run has said something when the first one does."""
        if context.job.recoveries:
            await context.progress(0.9, self._me)
        await self._gate(context)
        await context.progress(0.1, self._me)

    async def _gate(self, context: Context) -> None:
        assert self._ledger is not None
        self._note("counting")
        first = not context.job.recoveries
        gate = self._ledger.directory / ("first" if first else "second")
        while not gate.exists():
            if first:
                time.sleep(_GATE_SECONDS)  # noqa: ASYNC251 - that is the fault
            else:
                await asyncio.sleep(_GATE_SECONDS)


async def install(stage: Stage) -> None:
    connection = await stage.connect()
    try:
        await connection.execute(f"create schema {SCHEMA}")
        async with connect(stage.dsn) as hf:
            await hf.install()
        await connection.execute(_DDL)
    finally:
        await connection.close()


async def enqueue(stage: Stage, jobs: int) -> None:
    async with connect(stage.dsn) as hf:
        await Tasks(hf).count.enqueue_many([(number,) for number in range(jobs)])


async def counted(cluster: Cluster, database: str) -> tuple[int, int]:
    """The sum of the counter, and how many jobs are still in the queue."""
    connection = await cluster.connect(database)
    try:
        found = await connection.fetchrow(
            "select (select sum(n)::bigint from counting.counter),"
            " (select count(*) from counting.holdfast)"
        )
        return found[0], found[1]
    finally:
        await connection.close()


async def disturb(stage: Stage, names: tuple[str, ...], seed: int) -> dict[str, int]:
    """Kill, freeze past the lease and crash the server, until no job is left. How often each."""
    dice, done = random.Random(seed), {"kill": 0, "freeze": 0, "crash": 0}
    while (await counted(stage.cluster, stage.database))[1]:
        # Work has to go on between two faults, also where a process takes seconds to begin.
        await asyncio.sleep(dice.uniform(2.0, 5.0))
        kind, name = dice.choices(["kill", "freeze", "crash"], [6, 6, 1])[0], dice.choice(names)
        if kind == "crash" or stage.workers[name].alive:
            await _disturb(stage, kind, name, dice.uniform(1.2, 2.0) * stage.lease)
            done[kind] += 1
    # A process that has just begun knows nothing of SIGTERM.
    await stage.until(lambda: all(_works(stage, name) for name in names), 30.0)
    return done


async def _disturb(stage: Stage, kind: str, name: str, asleep: float) -> None:
    began, worker = now(), stage.workers[name]
    if kind == "crash":
        await stage.cluster.crash()
        await stage.cluster.start()
        stage.fault("crash", t=began, seconds=(now() - began) / SECOND, hit=True)
    elif kind == "kill":
        stage.fault("kill", name, hit=True)
        stage.kill(name)
    else:
        stage.freeze(name)
        await asyncio.sleep(asleep)
        stage.fault("freeze", name, t=began, seconds=(now() - began) / SECOND, hit=True)
        stage.thaw(worker)


def _works(stage: Stage, name: str) -> bool:
    lines = read_all(stage.directory, f"effects-{name}-{stage.workers[name].pid}.jsonl")
    return any(line["e"] == "running" for line in lines)
