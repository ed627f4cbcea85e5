"""The acts of the demo, in their order: it plays by itself and ends with a ledger that adds up."""

from __future__ import annotations

import asyncio
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from holdfast.app import Holdfast
from holdfast.cli.demo import report
from holdfast.cli.demo.view import View
from holdfast.cli.web import prepare, served
from holdfast.demo import handlers
from holdfast.demo.crew import Crew
from holdfast.demo.handlers import BROKEN, FAST, LATER, TICK
from holdfast.demo.ledger import Ledger, Ticks, draw_up
from holdfast.demo.nemesis import Nemesis
from holdfast.demo.producer import Producer
from holdfast.demo.worker import refusals
from holdfast.embedded import SCHEME
from holdfast.errors import DatabaseError
from holdfast.lifecycle import ACTIVE
from holdfast.models import NewJob
from holdfast.monitor.snapshot import Snapshot, collect

_LOOK_SECONDS = 0.5
_SETTLE_SECONDS = 60.0
_BURST_AT, _KILL_AT, _FREEZE_AT, _POISON_AT, _PRODUCE_UNTIL = 0.08, 0.2, 0.38, 0.58, 0.8
_MOST_BURST, _BURST_A_SECOND = 2000, 50
_PLANNED = 4


@dataclass(slots=True)
class Stage:
    """The objects that the acts share."""

    hf: Holdfast
    directory: Path
    seconds: float
    view: View
    producer: Producer
    crew: Crew
    nemesis: Nemesis
    ticks: Ticks
    began: float
    act: str = "starting"

    @property
    def elapsed(self) -> float:
        return monotonic() - self.began

    async def until(self, part: float, act: str) -> None:
        """Wait for that part of the time; acts that ran long push the next ones on."""
        self.act = "the stream goes on"
        await asyncio.sleep(max(0.0, part * self.seconds - self.elapsed))
        self.act = act


async def play(
    directory: Path, *, seconds: float, keep: bool, view: View, web: bool = False
) -> bool:
    """Play all acts; whether everything was settled and the ledger adds up."""
    began = monotonic()
    async with Holdfast.connect(f"{SCHEME}{directory}") as hf:
        with view.shown():
            if not keep:
                await hf.uninstall()
            await hf.install()
            view.say(
                f"A PostgreSQL of its own runs in {report.short(directory)}, ready after "
                f"{monotonic() - began:.1f} s. Nothing is simulated: it writes to your disk."
            )
            stage = await _set(hf, directory, seconds, view)
            page = _page(hf, view) if web else nullcontext()
            async with page, stage.crew.working(), _watched(stage):
                settled = await _acts(stage)
        ledger = await draw_up(hf, stage.producer.ids, stage.ticks)
        await _print(stage, ledger)
        return settled and ledger.balanced


@asynccontextmanager
async def _page(hf: Holdfast, view: View) -> AsyncIterator[None]:
    """Serve the web page beside the story, and show it where there is a browser."""
    serving = prepare("127.0.0.1", 0, None, "demo", "")
    async with served(hf, serving) as address:
        page = f"{address}?token={serving.token}"
        view.say(f"The web page of this queue: {page}")
        await asyncio.to_thread(webbrowser.open, page)
        yield


async def _set(hf: Holdfast, directory: Path, seconds: float, view: View) -> Stage:
    handlers.register(hf)
    producer = Producer(hf.queries)
    # The lowest id of this run. Older jobs belong to another run.
    await producer.add([NewJob(FAST)])
    await hf.scheduler_manager.register()
    await hf.schedules.resume(TICK)
    [schedule] = [found for found in await hf.schedules.list() if found.name == TICK]
    crew = Crew(directory)
    nemesis = Nemesis(hf, crew, directory, view.say)
    ticks = Ticks(schedule.next_run, None)
    return Stage(hf, directory, seconds, view, producer, crew, nemesis, ticks, monotonic())


async def _acts(stage: Stage) -> bool:
    view, producer = stage.view, stage.producer
    view.say(
        "Two worker processes start. Their leases last "
        f"{handlers.LEASE.total_seconds():g} s, so that you can watch them end."
    )
    view.say(
        "A producer enqueues without a pause: fast and slow jobs, flaky ones that are retried, "
        "broken ones that are held for a person, deferred ones, and unique ones of which only one "
        "may wait at a time. A schedule adds a tick each second."
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(producer.stream())
        await stage.until(_BURST_AT, "many at once")
        await _burst(stage)
        await stage.until(_KILL_AT, "a worker is killed")
        await stage.nemesis.kill(1)
        await stage.until(_FREEZE_AT, "a worker is frozen")
        await stage.nemesis.freeze(2)
        await stage.until(_POISON_AT, "a job kills its workers")
        await stage.nemesis.poison(producer)
        await stage.until(_PRODUCE_UNTIL, "settling")
        producer.stopped.set()
    view.say(f"The producer stops after {producer.enqueued:,} jobs. What is left is worked off.")
    return await _settle(stage)


async def _burst(stage: Stage) -> None:
    count = min(_MOST_BURST, int(stage.seconds * _BURST_A_SECOND))
    await stage.producer.burst(count)
    await stage.producer.plan(_PLANNED)
    stage.view.say(
        f"{count:,} jobs at once, in one statement; and {_PLANNED} for in an hour, "
        f"{len(stage.producer.canceled)} of which are cancelled again."
    )


async def _settle(stage: Stage) -> bool:
    """Wait until nothing is left but the jobs for later."""
    hf = stage.hf
    await hf.schedules.pause(TICK)
    [schedule] = [found for found in await hf.schedules.list() if found.name == TICK]
    stage.ticks = Ticks(stage.ticks.first, schedule.last_run)
    deadline = monotonic() + _SETTLE_SECONDS
    while monotonic() < deadline:
        left = sum(
            size.count
            for size in await hf.queries.queue_size()
            if size.status in ACTIVE and size.entrypoint != LATER
        )
        if not left:
            stage.view.say("All is settled. The workers send their last reports and leave.")
            return True
        await asyncio.sleep(0.1)
    stage.view.say(f"Not everything was settled within {_SETTLE_SECONDS:g} s.")
    return False


@asynccontextmanager
async def _watched(stage: Stage) -> AsyncIterator[None]:
    """The view follows the database while the block runs."""

    async def follow() -> None:
        snapshot: Snapshot | None = None
        while True:
            try:
                snapshot = await collect(stage.hf, snapshot)
            except DatabaseError:
                continue
            stage.view.show(snapshot, min(1.0, stage.elapsed / stage.seconds), stage.act)
            await asyncio.sleep(_LOOK_SECONDS)

    async with asyncio.TaskGroup() as group:
        following = group.create_task(follow())
        try:
            yield
        finally:
            following.cancel()


async def _print(stage: Stage, ledger: Ledger) -> None:
    await report.print_recoveries(stage.hf, ledger, stage.nemesis.incidents, stage.crew)
    await report.print_refusals(stage.hf, refusals(stage.directory), stage.crew)
    report.print_next(stage.directory, stage.producer, stage.producer.ids[BROKEN])
    # Last, or it would be above the first line of a terminal of 24.
    report.print_ledger(ledger, stage.producer.skipped)
