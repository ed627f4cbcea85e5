"""Who is woken by what. A job that is cancelled in the end proves that nothing else came."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from holdfast.lifecycle import RETIRE_LAST_RETRY, Status, Verb
from holdfast.models import SOON, ClaimRule, NewJob
from holdfast.stores.postgres.store import PostgresWakeups
from tests.conformance.stores import LEASE, SECOND, change

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from holdfast.models import Job, JobId
    from tests.conformance.stores import QueueUnderTest

START = datetime(2030, 1, 1, tzinfo=UTC)


class Heard:
    """What a listener was told."""

    def __init__(self) -> None:
        self.work = 0
        self.cancelled: list[JobId] = []
        self._told = asyncio.Event()

    def on_work(self) -> None:
        self.work += 1
        self._told.set()

    def on_cancel(self, job_id: JobId) -> None:
        self.cancelled.append(job_id)
        self._told.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self._told.clear()
                await self._told.wait()


@asynccontextmanager
async def listening(queue: QueueUnderTest, heard: Heard) -> AsyncIterator[None]:
    """A listener whose first, unasked call has come and is not counted."""
    wakeups = queue.worker().wakeups
    task = asyncio.create_task(wakeups.listen(heard.on_work, heard.on_cancel))
    try:
        await heard.until(lambda: heard.work == 1)
        heard.work = 0
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if isinstance(wakeups, PostgresWakeups) and wakeups.dedicated:
            await wakeups.close()


async def heard_of(queue: QueueUnderTest, act: Callable[[], Awaitable[object]]) -> Heard:
    """All that is told about an act: what follows it is told after it."""
    marker = await queue.lease("marker")
    heard = Heard()
    async with listening(queue, heard):
        await act()
        await queue.cancel(marker.id)
        await heard.until(lambda: marker.id in heard.cancelled)
    heard.cancelled.remove(marker.id)
    return heard


@pytest.mark.parametrize(
    ("jobs", "calls"),
    [
        ([NewJob("mail")], 1),
        ([NewJob("mail")] * 20, 1),
        ([NewJob("mail", execute_after=SOON)], 1),
        ([NewJob("mail", execute_after=SOON + SECOND)], 0),
        ([NewJob("mail", execute_after=SOON + SECOND), NewJob("sms")], 1),
        ([NewJob("mail", execute_after=START)], 1),
        ([], 0),
    ],
    ids=["one", "a batch", "soon", "deferred", "mixed", "due", "none"],
)
async def test_enqueuing_wakes_once_if_there_is_work_now_or_soon(
    queue: QueueUnderTest, jobs: list[NewJob], calls: int
) -> None:
    heard = await heard_of(queue, lambda: queue.store.jobs.insert(jobs, "raise"))
    assert (heard.work, heard.cancelled) == (calls, [])


async def test_a_skipped_duplicate_wakes_no_worker(queue: QueueUnderTest) -> None:
    job = NewJob("mail", dedupe_key="k")
    await queue.enqueue(job)
    assert (await heard_of(queue, lambda: queue.store.jobs.insert([job], "skip"))).work == 0


@pytest.mark.parametrize(
    ("verb", "delay", "calls"),
    [
        (Verb.RELEASE, 0, 1),
        (Verb.RETRY, 0, 1),
        (Verb.RETRY, 1, 0),
        (Verb.COMPLETE, 0, 0),
        (Verb.FAIL, 0, 0),
        (Verb.HOLD, 0, 0),
        (RETIRE_LAST_RETRY.name, 0, 0),
    ],
)
async def test_settling_wakes_exactly_when_jobs_can_be_claimed_again(
    queue: QueueUnderTest, verb: str, delay: int, calls: int
) -> None:
    await queue.enqueue(*[NewJob("mail", max_attempts=1 if "last" in verb else 9)] * 2)
    changes = [change(job, delay=delay * SECOND, error="no") for job in await queue.claim()]
    heard = await heard_of(queue, lambda: queue.change(verb, *changes))
    assert (heard.work, heard.cancelled) == (calls, [])


async def test_a_write_under_a_lost_lease_wakes_no_worker(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    await queue.settle(Verb.RELEASE, job)
    assert (await heard_of(queue, lambda: queue.change(Verb.RELEASE, change(job)))).work == 0


@pytest.mark.parametrize(("cap", "calls"), [(3, 1), (2, 0)])
async def test_recovery_wakes_for_what_it_recovers_and_not_for_what_it_retires(
    queue: QueueUnderTest, cap: int, calls: int
) -> None:
    await queue.job_in(Status.PICKED, deaths=1)
    rule = ClaimRule("mail", LEASE, max_recoveries=cap)

    async def sweep() -> None:
        queue.clock.advance(LEASE)
        await queue.recover(rule, limit=1)

    assert (await heard_of(queue, sweep)).work == calls


@pytest.mark.parametrize(("held", "calls"), [(True, 1), (False, 0)])
async def test_a_requeue_wakes_if_something_was_requeued(
    queue: QueueUnderTest, held: bool, calls: int
) -> None:
    job_id = await queue.hold() if held else await queue.add()
    assert (await heard_of(queue, lambda: queue.queries.requeue_jobs([job_id]))).work == calls


async def test_a_tick_of_a_schedule_wakes(queue: QueueUnderTest) -> None:
    schedules = queue.store.schedules
    schedule = await schedules.register("report", "* * * * *", "UTC", "once", "allow", START)
    heard = await heard_of(queue, lambda: schedules.advance(schedule, [START], START + SECOND))
    assert heard.work == 1


async def test_a_cancellation_notifies_only_the_holders(queue: QueueUnderTest) -> None:
    await queue.enqueue(*[NewJob("mail")] * 2)
    running = [job.id for job in await queue.claim()]
    waiting, held = await queue.add(), await queue.hold("sms")
    heard = await heard_of(queue, lambda: queue.cancel(waiting, held, *running))
    assert sorted(heard.cancelled) == running
    assert heard.work == 0


async def test_a_deletion_notifies_no_worker(queue: QueueUnderTest) -> None:
    job_id = await queue.add()
    heard = await heard_of(queue, lambda: queue.queries.delete_jobs([job_id]))
    assert (heard.work, heard.cancelled) == (0, [])


async def test_every_listener_is_told(queue: QueueUnderTest) -> None:
    one, other = Heard(), Heard()
    async with listening(queue, one), listening(queue, other):
        one.work = other.work = 0
        await queue.add()
        await one.until(lambda: one.work == 1)
        await other.until(lambda: other.work == 1)


async def test_a_listener_that_ended_is_told_nothing_more(queue: QueueUnderTest) -> None:
    ended = Heard()
    async with listening(queue, ended):
        pass
    heard = await heard_of(queue, queue.add)
    assert (heard.work, ended.work) == (1, 0)


async def test_a_woken_worker_finds_the_job(queue: QueueUnderTest) -> None:
    found: list[Job] = []
    heard = Heard()
    async with listening(queue, heard):
        job_id = await queue.add()
        await heard.until(lambda: heard.work == 1)
        found += await queue.claim()
    assert [job.id for job in found] == [job_id]
