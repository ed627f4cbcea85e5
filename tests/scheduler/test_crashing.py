"""An unexpected error in the scheduler is contained, and ends the worker only if it repeats."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from holdfast import Holdfast, Job, Schedule, Status
from holdfast.events import Event, StepFailed
from holdfast.scheduler import manager, tick
from tests.worker.workers import ends

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers import Database


class Broken(Exception):
    pass


class Failures:
    """Keeps what observers are told of failed steps."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []

    def notify(self, event: Event) -> None:
        if isinstance(event, StepFailed):
            self.steps.append((event.worker, event.step))


def breaking(monkeypatch: pytest.MonkeyPatch, breaks: Callable[[int], bool]) -> None:
    """Make the scheduler's look at what comes next raise, by the number of the call."""
    original, calls = tick.until_next, iter(range(10**6))

    def instead(*arguments: object) -> object:
        if breaks(next(calls)):
            raise Broken
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(manager, "until_next", instead)


async def test_a_scheduler_that_fails_once_goes_on_and_costs_no_job(
    pg18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaking(monkeypatch, lambda call: call == 0)
    failures, ticked, go = Failures(), asyncio.Event(), asyncio.Event()
    async with Holdfast.connect(pg18.dsn) as hf:
        await hf.install()
        hf.observers.subscribe(failures)

        @hf.entrypoint("long")
        async def long(job: Job) -> None:
            await go.wait()

        @hf.schedule("tick", "* * * * * *")
        async def ticks(schedule: Schedule) -> None:
            if failures.steps:
                ticked.set()

        [job_id] = await hf.queries.enqueue("long")
        run = asyncio.create_task(hf.run())
        await ends(ticked.wait())
        go.set()
        hf.shutdown.set()
        await ends(run)
        assert failures.steps == [(hf.queue_manager.id, "schedule")]
        assert hf.scheduler_manager.failures == 1
        assert await hf.queries.job_status([job_id]) == [(job_id, Status.SUCCESSFUL)]


async def test_a_scheduler_that_fails_without_end_stops_the_worker_which_releases_its_jobs(
    pg18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(manager, "LONGEST_PAUSE_SECONDS", 0.1)
    begun = asyncio.Event()
    breaking(monkeypatch, lambda _: begun.is_set())
    async with Holdfast.connect(pg18.dsn) as hf:
        await hf.install()

        @hf.entrypoint("endless")
        async def endless(job: Job) -> None:
            begun.set()
            await asyncio.Event().wait()

        @hf.schedule("tick", "* * * * * *")
        async def ticks(schedule: Schedule) -> None: ...

        [job_id] = await hf.queries.enqueue("endless")
        with pytest.raises(Broken):
            await ends(hf.run(drain_timeout=timedelta(0)))
        assert hf.scheduler_manager.failures >= manager.MOST_IN_A_ROW
        [job] = await hf.queries.get_jobs([job_id])
        assert (job.status, job.recoveries) == (Status.QUEUED, 0)
