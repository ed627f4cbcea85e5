"""Ticks that were missed, however many, are made up for in bounded bites."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from holdfast import Holdfast, Job, Schedule
from holdfast.clock import ManualClock
from holdfast.scheduler.cron import Cron
from holdfast.scheduler.tick import GRACE, MOST_MISSED, due_slots

if TYPE_CHECKING:
    from tests.servers import Database

SECOND = timedelta(seconds=1)
FIRST = datetime(2027, 1, 1, tzinfo=UTC)
EVERY_SECOND = Cron.parse("* * * * * *")
MONTH = timedelta(days=30)


@pytest.mark.parametrize("expression", ["* * * * * *", "*/7 * * * *", "0 3 * * 1", "30 2 1 1 *"])
@pytest.mark.parametrize("limit", [1, 3, 50])
def test_the_latest_slots_are_the_end_of_all_slots(expression: str, limit: int) -> None:
    cron = Cron.parse(expression, "Europe/Madrid")
    for span in (timedelta(minutes=3), timedelta(hours=3)):
        every = cron.between(FIRST, FIRST + span, 100_000).times

        found = cron.latest(FIRST, FIRST + span, limit)

        assert found.times == every[-limit:]
        assert found.more == (len(every) > limit)


@pytest.mark.parametrize(("misfire", "made_up"), [("skip", 0), ("once", 1)])
def test_a_month_of_missed_seconds_is_passed_over_in_one_step(misfire: str, made_up: int) -> None:
    now = FIRST + MONTH

    found = due_slots(EVERY_SECOND, FIRST, now, misfire)

    in_time = [now - n * SECOND for n in range(10, -1, -1)]
    missed = [now - GRACE - SECOND] * made_up
    assert found == ([*missed, *in_time], now + SECOND, False)


def test_of_a_month_of_missed_seconds_all_takes_the_last_ones_in_bites() -> None:
    now, first, taken = FIRST + MONTH, FIRST, list[datetime]()
    while first <= now:
        slots, first, _ = due_slots(EVERY_SECOND, first, now, "all")
        assert 0 < len(slots) <= 1011
        taken += slots

    missed = [slot for slot in taken if slot < now - GRACE]
    assert taken == sorted(set(taken))
    assert len(missed) == MOST_MISSED
    assert taken[-1] == now
    assert due_slots(EVERY_SECOND, FIRST, now, "all").dropped


async def test_other_jobs_run_while_missed_ticks_are_made_up_for(
    pg18: Database, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(FIRST)
    waiting_when_it_ran: list[int] = []
    async with Holdfast.connect(pg18.dsn, clock=clock) as hf:
        await hf.install()

        @hf.schedule("every_second", "* * * * * *", misfire="all", concurrency_limit=1)
        async def every_second(schedule: Schedule) -> None:
            await hf.shutdown.wait()

        @hf.entrypoint("other")
        async def other(job: Job) -> None:
            sizes = await hf.queries.queue_size(["every_second"])
            waiting_when_it_ran.append(sum(size.count for size in sizes))
            hf.shutdown.set()

        await hf.scheduler_manager.register()
        clock.advance(MONTH)
        await hf.queries.enqueue("other", None)
        async with asyncio.timeout(60):
            await hf.run()

    [waiting] = waiting_when_it_ran
    assert 0 < waiting < MOST_MISSED
    assert "were missed and are not enqueued" in caplog.text
