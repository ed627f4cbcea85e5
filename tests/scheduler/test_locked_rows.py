"""A schedule whose row is locked neither stops the others nor keeps a scheduler busy."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import pytest

from holdfast import Schedule
from holdfast.clock import ManualClock
from holdfast.scheduler.manager import SchedulerManager
from holdfast.scheduler.tick import MOMENT, until_next
from tests.postgres import tables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.stores.postgres.store import PostgresStore
    from tests.servers import Database

START = datetime(2030, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


class FirstRest(asyncio.Event):
    """A shutdown that comes in the first nap that does not end at once."""

    async def wait(self) -> Literal[True]:
        for _ in range(10):
            await asyncio.sleep(0)
        self.set()
        return True


@asynccontextmanager
async def locked(dsn: str, name: str) -> AsyncIterator[None]:
    """Inside, an open transaction has locked the row of the schedule."""
    async with tables.session(dsn) as connection, connection.transaction():
        await connection.execute("select from holdfast_schedules where name = $1 for update", name)
        yield


@asynccontextmanager
async def due(
    dsn: str, *names: str, shutdown: asyncio.Event | None = None
) -> AsyncIterator[tuple[PostgresStore, SchedulerManager]]:
    """A scheduler, and the store of schedules with one tick due each."""
    clock = ManualClock(START)
    async with tables.installed(dsn, clock) as (_, store):
        scheduler = SchedulerManager(store, shutdown=shutdown)
        for name in names:
            scheduler.add(name, "* * * * *", "UTC", "once", "allow")
        await scheduler.register()
        clock.advance(timedelta(minutes=1))
        yield store, scheduler


async def ticked(store: PostgresStore, scheduler: SchedulerManager) -> list[str]:
    """The schedules of which a tick became a job."""
    async with asyncio.timeout(60):
        made = await scheduler.tick()
    return sorted(job.entrypoint for job in await store.jobs.get(made))


async def test_the_others_tick_at_once_and_the_locked_one_when_it_is_free(pg: Database) -> None:
    async with due(pg.dsn, "first", "held", "last") as (store, scheduler):
        async with locked(pg.dsn, "held"):
            assert await ticked(store, scheduler) == ["first", "last"]
            assert await ticked(store, scheduler) == []
        assert await ticked(store, scheduler) == ["held"]


async def test_a_scheduler_rests_while_all_that_is_due_is_locked(pg: Database) -> None:
    shutdown = FirstRest()
    async with due(pg.dsn, "held", shutdown=shutdown) as (store, scheduler):
        async with locked(pg.dsn, "held"), asyncio.timeout(60):
            await scheduler.run()
        assert await ticked(store, scheduler) == ["held"]


@pytest.mark.parametrize(
    ("next_runs", "wait"),
    [
        ([], timedelta(seconds=5)),
        ([300 * MILLISECOND], 290 * MILLISECOND),
        ([timedelta(hours=1)], timedelta(seconds=5)),
        # Due at the tick, and due still: it is locked.
        ([timedelta(0)], MOMENT),
        ([-timedelta(hours=1), timedelta(hours=1)], MOMENT),
        ([-timedelta(hours=1), 300 * MILLISECOND], 290 * MILLISECOND),
        # Due since the tick.
        ([MILLISECOND], timedelta(0)),
        ([-timedelta(hours=1), MILLISECOND], timedelta(0)),
    ],
)
def test_the_next_tick_is_waited_for_whatever_is_locked(
    next_runs: list[timedelta], wait: timedelta
) -> None:
    """Ten milliseconds after a tick."""
    schedules = [
        Schedule(
            id=number,
            name=f"schedule {number}",
            expression="@hourly",
            timezone="UTC",
            misfire="once",
            overlap="allow",
            paused=False,
            next_run=START + next_run,
            last_run=None,
            created=START,
            updated=START,
        )
        for number, next_run in enumerate(next_runs)
    ]
    assert until_next(schedules, START, START + 10 * MILLISECOND) == wait
