"""Each tick of a schedule becomes exactly one job, whoever else schedules and whoever dies."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from holdfast import Holdfast, Schedule
from holdfast.clock import ManualClock
from holdfast.lifecycle import Status
from holdfast.scheduler.cron import Cron

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

    from holdfast import Job
    from tests.servers import Database

SECOND = timedelta(seconds=1)

NIGHTS = [
    ("Europe/Madrid", datetime(2027, 3, 27, 22, tzinfo=UTC)),
    ("Europe/Madrid", datetime(2027, 10, 30, 21, tzinfo=UTC)),
    ("America/New_York", datetime(2027, 3, 14, 4, tzinfo=UTC)),
    ("America/New_York", datetime(2027, 11, 7, 3, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2027, 4, 3, 12, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2027, 10, 2, 12, tzinfo=UTC)),
]
EXPRESSIONS = {
    "daily": "30 2 * * *",
    "at_the_hour": "0 * * * *",
    "quarters": "*/15 1-3 * * *",
    "nightly": "0 0 * * *",
}


async def slots_of(hf: Holdfast, name: str) -> list[datetime]:
    """The ticks that became jobs of a schedule, in their order."""
    jobs = await hf.queries.browse_queue(entrypoint=name, limit=10_000)
    assert all(job.status is Status.QUEUED for job in jobs)
    return sorted(datetime.fromisoformat(slot(job)) for job in jobs)


def slot(job: Job) -> str:
    assert job.headers is not None
    return str(job.headers["slot"])


def declare(hf: Holdfast, timezone: str) -> None:
    for name, expression in EXPRESSIONS.items():

        @hf.schedule(name, expression, timezone=timezone, misfire="all")
        async def handler(schedule: Schedule) -> None: ...


@pytest.mark.parametrize(("timezone", "start"), NIGHTS, ids=lambda value: str(value)[:19])
async def test_both_nights_of_summer_time_tick_as_written(
    pg18: Database, timezone: str, start: datetime
) -> None:
    """Ten schedulers under one moved clock, racing at every step."""
    clock = ManualClock(start)
    async with AsyncExitStack() as stack:
        fleet = [
            await stack.enter_async_context(Holdfast.connect(pg18.dsn, clock=clock))
            for _ in range(10)
        ]
        await fleet[0].install()
        for hf in fleet:
            declare(hf, timezone)
            await hf.scheduler_manager.register()
        end = start + timedelta(hours=9)
        while clock.now() < end:
            clock.advance(timedelta(minutes=17))
            await asyncio.gather(*(hf.scheduler_manager.tick() for hf in fleet))
        for name, expression in EXPRESSIONS.items():
            wanted = Cron.parse(expression, timezone).between(start, clock.now(), 1000).times
            assert wanted
            assert await slots_of(fleet[0], name) == wanted


async def start(dsn: str) -> Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.scheduler.ticking", dsn, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        assert await process.stdout.readline() == b"ready\n"
    return process


async def test_ten_schedulers_and_kills_make_one_job_for_each_second(pg18: Database) -> None:
    chance = random.Random(7)
    async with Holdfast.connect(pg18.dsn) as hf:
        await hf.install()
        fleet = list(await asyncio.gather(*(start(pg18.dsn) for _ in range(10))))
        try:
            async with asyncio.timeout(200):
                for wanted in range(2, 10):
                    # Other processes make them, and no event of theirs reaches us.
                    while len(await slots_of(hf, "every_second")) < wanted:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                    if len(fleet) > 2:
                        victim = fleet.pop(chance.randrange(len(fleet)))
                        victim.send_signal(signal.SIGKILL)
                        await victim.wait()
        finally:
            for process in fleet:
                process.kill()
                await process.wait()
        found = await slots_of(hf, "every_second")
        assert len(found) >= 9
        assert found == [found[0] + number * SECOND for number in range(len(found))]


@pytest.fixture
async def ticked(pg18: Database) -> AsyncIterator[tuple[Holdfast, ManualClock]]:
    """Schedules whose ticks are enqueued up to now."""
    clock = ManualClock()
    async with Holdfast.connect(pg18.dsn, clock=clock) as hf:
        await hf.install()
        declare(hf, "UTC")
        await hf.scheduler_manager.register()
        clock.advance(timedelta(hours=5))
        await hf.scheduler_manager.tick()
        yield hf, clock


async def test_ticks_go_on_when_the_clock_was_set_back(
    ticked: tuple[Holdfast, ManualClock], caplog: pytest.LogCaptureFixture
) -> None:
    hf, clock = ticked
    before = {schedule.name: schedule for schedule in await hf.store.schedules.all()}
    clock.advance(-timedelta(hours=3))
    running = asyncio.create_task(hf.scheduler_manager.run())
    try:
        async with asyncio.timeout(30):
            while "the clock was set back" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        hf.shutdown.set()
        await running
    after = {schedule.name: schedule for schedule in await hf.store.schedules.all()}
    for name in ("at_the_hour", "quarters"):
        expected = Cron.parse(EXPRESSIONS[name], "UTC").after(clock.now())
        assert after[name].next_run == expected < before[name].next_run
        assert after[name].last_run == before[name].last_run
    # Their only ticks in these hours have become jobs already.
    for name in ("daily", "nightly"):
        assert after[name] == before[name]
    queued = await hf.queries.browse_queue(limit=10_000)
    await hf.queries.mark_job_as_cancelled([job.id for job in queued])
    clock.advance(timedelta(hours=1))
    assert len(await hf.scheduler_manager.tick()) == 5


async def test_a_clock_that_went_back_a_little_repeats_no_tick(
    ticked: tuple[Holdfast, ManualClock],
) -> None:
    hf, clock = ticked
    before = await hf.store.schedules.all()
    clock.advance(-10 * SECOND)
    await hf.scheduler_manager._until_next(clock.now())
    assert await hf.store.schedules.all() == before
