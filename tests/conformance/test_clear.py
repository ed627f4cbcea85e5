"""Emptying the queue, the log and the statistics, and raising the priority of a duplicate."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from holdfast.lifecycle import LIVE, Status, Verb
from holdfast.models import NewJob
from tests.conformance.stores import SECOND, change

if TYPE_CHECKING:
    from tests.conformance.stores import QueueUnderTest


async def count_all(queue: QueueUnderTest) -> None:
    """Until the log is counted, which waits for every transaction of the server."""
    async with asyncio.timeout(30):
        while True:
            await queue.store.jobs.aggregate()
            if await queue.store.jobs.uncounted(-SECOND) == 0:
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("status", LIVE)
async def test_clearing_takes_a_job_from_wherever_it_is(
    queue: QueueUnderTest, status: Status
) -> None:
    job = (await queue.job_in(status)).job
    assert await queue.queries.clear_queue(actor="ann", reason="over") == 1
    entry = await queue.last_entry(job.id)
    expected = Status.CANCELED if status is Status.PICKED else Status.DELETED
    assert (entry.status, entry.actor, entry.reason) == (expected, "ann", "over")
    assert await queue.queries.queue_size() == []


async def test_a_holder_whose_job_was_cleared_can_change_nothing(queue: QueueUnderTest) -> None:
    job = await queue.lease()
    await queue.queries.clear_queue()
    before = await queue.rows()
    assert await queue.change(Verb.COMPLETE, change(job)) == set()
    assert await queue.rows() == before


async def test_only_the_entrypoints_named_are_cleared(queue: QueueUnderTest) -> None:
    await queue.enqueue(NewJob("mail"), NewJob("report"), NewJob("sync"))
    assert await queue.queries.clear_queue(["mail", "report", "unknown"]) == 2
    assert [size.entrypoint for size in await queue.queries.queue_size()] == ["sync"]
    assert await queue.queries.clear_queue([]) == 0
    assert await queue.queries.clear_queue("sync") == 1


async def test_a_cleared_key_is_free(queue: QueueUnderTest) -> None:
    await queue.add(dedupe_key="k")
    await queue.queries.clear_queue()
    await queue.add(dedupe_key="k")


async def test_the_log_of_an_entrypoint_is_cleared(queue: QueueUnderTest) -> None:
    for entrypoint in ("mail", "report"):
        await queue.settle(Verb.COMPLETE, await queue.lease(entrypoint))
    await count_all(queue)
    assert await queue.queries.clear_queue_log("mail") == 1
    assert [entry.entrypoint for entry in await queue.queries.queue_log()] == ["report"]
    assert await queue.queries.clear_queue_log() == 1
    assert {one.entrypoint: one.count for one in await queue.queries.log_statistics()} == {
        "mail": 1,
        "report": 1,
    }


async def test_statistics_are_cleared_and_not_counted_again(queue: QueueUnderTest) -> None:
    for entrypoint in ("mail", "report"):
        await queue.settle(Verb.COMPLETE, await queue.lease(entrypoint))
    await count_all(queue)
    assert await queue.queries.clear_statistics_log("mail") == 1
    assert [one.entrypoint for one in await queue.queries.log_statistics()] == ["report"]
    assert await queue.queries.clear_statistics_log() == 1
    assert await queue.queries.log_statistics(None) == []
    assert len(await queue.queries.queue_log()) == 2


async def test_a_raise_changes_the_priority_and_nothing_else(queue: QueueUnderTest) -> None:
    job_id = await queue.add(dedupe_key="k", priority=1)
    before = await queue.row(job_id)
    queue.clock.advance(SECOND)
    assert await queue.store.jobs.raise_priority({"k": 5, "unknown": 9}) == {"k": job_id}
    after = await queue.row(job_id)
    assert after == before._replace(priority=5, updated=queue.clock.now())
    await queue.store.jobs.raise_priority({"k": 4})
    assert await queue.row(job_id) == after


async def test_a_job_that_runs_is_found_and_left_alone(queue: QueueUnderTest) -> None:
    job = await queue.lease(dedupe_key="k")
    before = await queue.row(job.id)
    assert await queue.store.jobs.raise_priority({"k": 5}) == {"k": job.id}
    assert await queue.row(job.id) == before


async def test_a_held_job_is_not_found_by_its_key(queue: QueueUnderTest) -> None:
    await queue.hold(dedupe_key="k")
    assert await queue.store.jobs.raise_priority({"k": 5}) == {}


async def test_a_batch_raises_and_enqueues_in_its_order(queue: QueueUnderTest) -> None:
    first, second = await queue.add(dedupe_key="a"), await queue.add(dedupe_key="b", priority=9)
    ids = await queue.queries.enqueue(
        "mail", priority=[5, 6, 7], dedupe_key=["b", "c", "a"], on_conflict="update_priority"
    )
    assert (ids[0], ids[2]) == (second, first)
    priorities = {job.dedupe_key: job.priority for job in await queue.queries.browse_queue()}
    assert priorities == {"a": 7, "b": 9, "c": 6}
