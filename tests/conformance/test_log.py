"""The log, what is counted from it, and how it is pruned."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.histogram import place
from holdfast.lifecycle import Status, Verb
from holdfast.models import NewJob, Statistic
from tests.conformance.stores import SECOND, change

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.histogram import Histogram
    from holdfast.models import JobId
    from tests.conformance.stores import QueueUnderTest

MINUTE = timedelta(minutes=1)
START = datetime(2030, 1, 1, tzinfo=UTC)


async def ended(
    queue: QueueUnderTest, verb: Verb, entrypoint: str = "mail", after: timedelta = SECOND
) -> JobId:
    """A job that was leased for a while and then came to this end."""
    job = await queue.lease(entrypoint)
    queue.clock.advance(after)
    await queue.settle(verb, job, error="no")
    return job.id


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Rows are counted when no older transaction runs on the server, whose end is not notified."""
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def count_all(queue: QueueUnderTest) -> None:
    async def counted() -> bool:
        await queue.store.jobs.aggregate()
        return await queue.store.jobs.uncounted(-MINUTE) == 0

    await until(counted)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, [3, 2, 1, 0]),
        ({"limit": 1}, [3]),
        ({"status": "successful"}, [2, 0]),
        ({"status": Status.EXCEPTION}, [1]),
        ({"entrypoint": "sms"}, [3, 2]),
        ({"entrypoint": "sms", "status": "successful", "limit": 5}, [2]),
        ({"status": "deleted"}, []),
        ({"last": timedelta(0)}, []),
        ({"last": timedelta(hours=3)}, [3, 2]),
        ({"last": timedelta(days=20)}, [3, 2, 1]),
    ],
)
async def test_the_newest_log_rows_come_first_and_can_be_filtered(
    queue: QueueUnderTest, asked: dict[str, Any], found: list[int]
) -> None:
    """The rows lie minutes, hours, days and years back."""
    job_ids = [await ended(queue, Verb.COMPLETE)]
    queue.clock.advance(timedelta(days=400))
    job_ids.append(await ended(queue, Verb.FAIL))
    queue.clock.advance(timedelta(days=10))
    job_ids.append(await ended(queue, Verb.COMPLETE, "sms"))
    queue.clock.advance(timedelta(hours=1))
    job_ids.append(await ended(queue, Verb.RETRY, "sms"))
    log = await queue.queries.queue_log(**asked)
    assert [entry.job_id for entry in log] == [job_ids[place] for place in found]


async def test_every_lease_leaves_one_row(queue: QueueUnderTest) -> None:
    await queue.enqueue(*[NewJob("mail")] * 20)
    jobs = await queue.claim()
    await queue.change(Verb.COMPLETE, *map(change, jobs[:10]))
    await queue.change(Verb.RELEASE, *map(change, jobs[10:]))
    log = await queue.queries.queue_log()
    assert sorted(entry.job_id for entry in log) == [job.id for job in jobs]
    assert len({entry.id for entry in log}) == 20


async def test_outcomes_are_counted_by_minute_and_kind(queue: QueueUnderTest) -> None:
    await ended(queue, Verb.COMPLETE, after=10 * SECOND)
    await ended(queue, Verb.COMPLETE, after=20 * SECOND)
    await ended(queue, Verb.FAIL, "sms")
    queue.clock.set(START + MINUTE)
    await ended(queue, Verb.COMPLETE, after=timedelta(0))
    await queue.cancel(await queue.add())
    await count_all(queue)
    nothing = timedelta(0)
    found = await queue.queries.log_statistics()
    assert [replace(statistic, waited=(), ran=()) for statistic in found] == [
        Statistic(START + MINUTE, "mail", 0, Status.CANCELED, 1, nothing),
        Statistic(START + MINUTE, "mail", 0, Status.SUCCESSFUL, 1, nothing),
        Statistic(START, "mail", 0, Status.SUCCESSFUL, 2, 30 * SECOND),
        Statistic(START, "sms", 0, Status.EXCEPTION, 1, SECOND),
    ]


async def test_waiting_and_running_times_are_counted_in_steps(queue: QueueUnderTest) -> None:
    for waited, ran in ((2, 10), (2, 20), (300, 1)):
        await queue.add()
        queue.clock.advance(waited * SECOND)
        [job] = await queue.claim()
        queue.clock.advance(ran * SECOND)
        await queue.settle(Verb.COMPLETE, job)
        # Each is counted by itself, so that counts are added to those that are there.
        await count_all(queue)
    await queue.cancel(await queue.add())
    await count_all(queue)
    [timing] = await queue.queries.timings(timedelta(days=1))
    assert timing.entrypoint == "mail"
    assert {place(2 * SECOND): 2, place(300 * SECOND): 1} == counts(timing.waited)
    assert {place(SECOND * ran): 1 for ran in (1, 10, 20)} == counts(timing.ran)
    median = timing.waiting(0.5)
    assert median is not None
    assert median / SECOND == pytest.approx(2, rel=0.2)


def counts(histogram: Histogram) -> dict[int, int]:
    return {at: count for at, count in enumerate(histogram) if count}


async def test_a_lease_that_ended_says_when_its_job_was_enqueued_and_due(
    queue: QueueUnderTest,
) -> None:
    job_id = await queue.add(execute_after=MINUTE)
    queue.clock.advance(2 * MINUTE)
    [job] = await queue.claim()
    await queue.settle(Verb.RETRY, job, error="no", delay=MINUTE)
    queue.clock.advance(MINUTE)
    [again] = await queue.claim()
    await queue.settle(Verb.COMPLETE, again)
    first, last = await queue.queries.job_history(job_id)
    assert (first.enqueued_at, first.due_at, first.lease) == (START, START + MINUTE, job.lease)
    assert (last.enqueued_at, last.due_at) == (START, START + 3 * MINUTE)
    assert (first.fingerprint is None, last.fingerprint) == (False, None)


async def test_errors_of_one_kind_share_a_fingerprint(queue: QueueUnderTest) -> None:
    told = ["timeout after 5 s", "timeout after 31 s", "refused"]
    marks = []
    for error in told:
        job = await queue.lease()
        await queue.settle(Verb.HOLD, job, error=error)
        marks.append((await queue.last_entry(job.id)).fingerprint)
    assert marks[0] == marks[1] != marks[2]


async def test_a_row_is_counted_once_however_often_one_counts(queue: QueueUnderTest) -> None:
    await ended(queue, Verb.COMPLETE)
    await count_all(queue)
    assert await queue.store.jobs.aggregate() == 0
    await ended(queue, Verb.COMPLETE)
    await count_all(queue)
    [found] = await queue.queries.log_statistics()
    assert (found.count, found.busy) == (2, 2 * SECOND)


async def test_housekeeping_counts_too(queue: QueueUnderTest) -> None:
    await ended(queue, Verb.COMPLETE)

    async def counted() -> bool:
        await queue.store.leases.housekeep()
        return await queue.store.jobs.uncounted(-MINUTE) == 0

    await until(counted)


@pytest.mark.parametrize(
    ("last", "limit", "minutes"),
    [(None, 100, [2, 1, 0]), (None, 2, [2, 1]), (MINUTE, 100, [2, 1]), (timedelta(0), 9, [2])],
)
async def test_statistics_can_be_cut_by_time_and_number(
    queue: QueueUnderTest, last: timedelta | None, limit: int, minutes: list[int]
) -> None:
    for minute in range(3):
        queue.clock.set(START + minute * MINUTE)
        await ended(queue, Verb.COMPLETE, after=timedelta(0))
    await count_all(queue)
    found = await queue.queries.log_statistics(last=last, limit=limit)
    assert [statistic.bucket for statistic in found] == [START + n * MINUTE for n in minutes]


async def test_without_a_log_there_are_no_statistics(queue: QueueUnderTest) -> None:
    await queue.lease()
    assert await queue.queries.log_statistics() == []


async def test_pruning_takes_the_oldest_first_and_keeps_what_is_young(
    queue: QueueUnderTest,
) -> None:
    job_ids = []
    for _ in range(4):
        job_ids.append(await ended(queue, Verb.COMPLETE))
        queue.clock.advance(MINUTE)
    await count_all(queue)
    before = await queue.queries.log_statistics()
    # The last row is exactly one minute old, which is not older than a minute.
    assert await queue.queries.prune_log(MINUTE, limit=2) == 2
    assert {entry.job_id for entry in await queue.queries.queue_log()} == set(job_ids[2:])
    assert await queue.queries.prune_log(MINUTE) == 1
    assert await queue.queries.prune_log(MINUTE) == 0
    assert [entry.job_id for entry in await queue.queries.queue_log()] == job_ids[3:]
    assert await queue.queries.log_statistics() == before


async def test_what_is_counted_is_not_left_by_pruning(queue: QueueUnderTest) -> None:
    await ended(queue, Verb.COMPLETE)
    queue.clock.advance(MINUTE + SECOND)
    await count_all(queue)
    assert await queue.queries.uncounted_log(MINUTE) == 0
    assert await queue.queries.prune_log(MINUTE) == 1


async def test_pruning_does_not_lose_what_was_not_counted(queue: QueueUnderTest) -> None:
    await ended(queue, Verb.COMPLETE)
    queue.clock.advance(MINUTE)
    queue.clock.advance(SECOND)
    assert await queue.store.jobs.prune(older_than=timedelta(0), limit=10) == 0
    assert await queue.store.jobs.uncounted(timedelta(0)) == 1
    assert len((await queue.rows()).log) == 1
