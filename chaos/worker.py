"""A worker process: `python -m chaos.worker PLAN`. It also notes when it was kept from running."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import uvloop

from chaos import counting, leash
from chaos.files import SECOND, now
from chaos.handlers import Handlers, Ledger
from chaos.plans import WorkerPlan
from holdfast import Holdfast
from holdfast.errors import DatabaseError
from holdfast.stores.postgres.drivers import listening
from holdfast.worker.settle import Settler
from holdfast.worker.slots import Slots

_TICK = 0.05
NOTED = 1 / 30
"""The part of a lease from which on a stretch is noted: a third of what a worker keeps as margin
before the end of a lease."""

_RETRY = 0.1


class Watchman(threading.Thread):
    """Notes stalls: stretches in which no thread of this process ran, whoever's fault that was.

    Lags are those of the event loop alone. Without `hf` nothing else is watched.
    """

    def __init__(self, ledger: Ledger, hf: Holdfast | None, lease: float) -> None:
        super().__init__(daemon=True)
        self._ledger = ledger
        self._hf = hf
        self._longest = lease * NOTED
        self.was_running = False

    def run(self) -> None:
        while True:
            began = now()
            time.sleep(_TICK)
            if (now() - began) / SECOND > _TICK + self._longest:
                self._ledger.note("stall", since=began)
            manager = self._hf and self._hf.queue_manager
            if manager and not self.was_running and manager.state == "running":
                self.was_running = True
                self._ledger.note("running", id=manager.id)

    async def watch_loop(self) -> None:
        """Until cancelled."""
        while True:
            began = now()
            await asyncio.sleep(_TICK)
            if (now() - began) / SECOND > _TICK + self._longest:
                self._ledger.note("lag", since=began)


async def main(plan: WorkerPlan) -> None:
    ledger = Ledger(Path(plan.directory), plan.name)
    ledger.note("spawned", worker=plan.name, pid=os.getpid())
    listening.PING_EVERY = plan.ping
    listening.PING_TIMEOUT = min(listening.PING_TIMEOUT, plan.ping)
    if plan.trip is not None:
        trip(plan.trip, ledger)
    connect = counting.connect if plan.counting else Holdfast.connect
    async with connect(plan.dsn, timeout=plan.timeout) as hf:
        register(hf, plan, ledger)
        if plan.max_block is not None:
            hf.queue_manager.on_blocked = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        watchman = Watchman(ledger, hf, plan.lease)
        watchman.start()
        watching = asyncio.create_task(watchman.watch_loop())
        await work(hf, plan, ledger, watchman)
        watching.cancel()
    ledger.note("stopped", id=hf.queue_manager.id)


def register(hf: Holdfast, plan: WorkerPlan, ledger: Ledger) -> None:
    """What this worker serves."""
    if plan.counting:
        counting.Tasks(hf, ledger, plan.name)
        return
    handlers = Handlers(ledger, plan.lease)
    handlers.register(hf, plan.entrypoints, scheduled=plan.scheduled, tables=plan.tables)
    if plan.snoozes:
        handlers.register_snoozes(hf)
    hf.observe(ledger)


def trip(step: str, ledger: Ledger) -> None:
    """Have a step of the worker raise an unexpected error, the first time it has something to do.

    Everything after that is as ever.
    """
    owner, name = {"settle": (Settler, "_write"), "dispatch": (Slots, "add")}[step]
    original: Any = getattr(owner, name)
    tripped = False

    def instead(self: Any, *arguments: Any) -> Any:
        nonlocal tripped
        if tripped or not arguments[0]:
            return original(self, *arguments)
        tripped = True
        ledger.note("tripped", step=step)
        raise RuntimeError("a bug of the worker")

    setattr(owner, name, instead)


async def work(hf: Holdfast, plan: WorkerPlan, ledger: Ledger, watchman: Watchman) -> None:
    """Run; a server that is away at the start is waited for, one that goes later is no reason."""
    while True:
        try:
            await hf.run(
                connections=plan.connections,
                heartbeat_timeout=timedelta(seconds=plan.lease),
                concurrency=plan.concurrency,
                batch_size=plan.batch_size,
                dequeue_timeout=timedelta(seconds=plan.poll),
                drain_timeout=timedelta(seconds=plan.drain),
                max_loop_block=timedelta(seconds=plan.max_block) if plan.max_block else None,
            )
        except DatabaseError as error:
            if watchman.was_running:
                raise
            ledger.note("waiting", error=str(error))
            await asyncio.sleep(_RETRY)
        else:
            return


if __name__ == "__main__":
    leash.tie()
    told = WorkerPlan.loads(sys.argv[1])
    if told.mutant is not None:
        from chaos import mutants

        mutants.plant(told.mutant, told.skew)
    # As `holdfast run` does.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(told))
