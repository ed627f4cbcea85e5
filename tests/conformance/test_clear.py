"""Emptying the queue, the log and the statistics, and raising the priority of a duplicate."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from holdfast.lifecycle import LIVE, Status, Verb
from holdfast.models import NewJob
from tests.conformance.stores import SECOND, change

if TYPE_CHECKING:
    from tests.conformance.stores import Rig


async def count_all(rig: Rig) -> None:
    """Until the log is counted, which waits for every transaction of the server."""
    async with asyncio.timeout(30):
        while True:
            await rig.store.jobs.aggregate()
            if await rig.store.jobs.uncounted(-SECOND) == 0:
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("status", LIVE)
async def test_clearing_takes_a_job_from_wherever_it_is(rig: Rig, status: Status) -> None:
    job = (await rig.job_in(status)).job
    assert await rig.queries.clear_queue(actor="ann", reason="over") == 1
    entry = await rig.last_entry(job.id)
    expected = Status.CANCELED if status is Status.PICKED else Status.DELETED
    assert (entry.status, entry.actor, entry.reason) == (expected, "ann", "over")
    assert await rig.queries.queue_size() == []


async def test_a_holder_whose_job_was_cleared_can_change_nothing(rig: Rig) -> None:
    job = await rig.lease()
    await rig.queries.clear_queue()
    before = await rig.rows()
    assert await rig.change(Verb.COMPLETE, change(job)) == set()
    assert await rig.rows() == before


async def test_only_the_entrypoints_named_are_cleared(rig: Rig) -> None:
    await rig.enqueue(NewJob("mail"), NewJob("report"), NewJob("sync"))
    assert await rig.queries.clear_queue(["mail", "report", "nobody"]) == 2
    assert [size.entrypoint for size in await rig.queries.queue_size()] == ["sync"]
    assert await rig.queries.clear_queue([]) == 0
    assert await rig.queries.clear_queue("sync") == 1


async def test_a_cleared_key_is_free(rig: Rig) -> None:
    await rig.add(dedupe_key="k")
    await rig.queries.clear_queue()
    await rig.add(dedupe_key="k")


async def test_the_log_of_an_entrypoint_is_cleared(rig: Rig) -> None:
    for entrypoint in ("mail", "report"):
        await rig.settle(Verb.COMPLETE, await rig.lease(entrypoint))
    await count_all(rig)
    assert await rig.queries.clear_queue_log("mail") == 1
    assert [entry.entrypoint for entry in await rig.queries.queue_log()] == ["report"]
    assert await rig.queries.clear_queue_log() == 1
    assert {one.entrypoint: one.count for one in await rig.queries.log_statistics()} == {
        "mail": 1,
        "report": 1,
    }


async def test_statistics_are_cleared_and_not_counted_again(rig: Rig) -> None:
    for entrypoint in ("mail", "report"):
        await rig.settle(Verb.COMPLETE, await rig.lease(entrypoint))
    await count_all(rig)
    assert await rig.queries.clear_statistics_log("mail") == 1
    assert [one.entrypoint for one in await rig.queries.log_statistics()] == ["report"]
    assert await rig.queries.clear_statistics_log() == 1
    assert await rig.queries.log_statistics(None) == []
    assert len(await rig.queries.queue_log()) == 2


async def test_a_raise_changes_the_priority_and_nothing_else(rig: Rig) -> None:
    job_id = await rig.add(dedupe_key="k", priority=1)
    before = await rig.row(job_id)
    rig.clock.advance(SECOND)
    assert await rig.store.jobs.raise_priority({"k": 5, "unknown": 9}) == {"k": job_id}
    after = await rig.row(job_id)
    assert after == before._replace(priority=5, updated=rig.clock.now())
    await rig.store.jobs.raise_priority({"k": 4})
    assert await rig.row(job_id) == after


async def test_a_job_that_runs_is_found_and_left_alone(rig: Rig) -> None:
    job = await rig.lease(dedupe_key="k")
    before = await rig.row(job.id)
    assert await rig.store.jobs.raise_priority({"k": 5}) == {"k": job.id}
    assert await rig.row(job.id) == before


async def test_a_held_job_is_not_found_by_its_key(rig: Rig) -> None:
    await rig.hold(dedupe_key="k")
    assert await rig.store.jobs.raise_priority({"k": 5}) == {}


async def test_a_batch_raises_and_enqueues_in_its_order(rig: Rig) -> None:
    first, second = await rig.add(dedupe_key="a"), await rig.add(dedupe_key="b", priority=9)
    ids = await rig.queries.enqueue(
        "mail", priority=[5, 6, 7], dedupe_key=["b", "c", "a"], on_conflict="update_priority"
    )
    assert (ids[0], ids[2]) == (second, first)
    priorities = {job.dedupe_key: job.priority for job in await rig.queries.browse_queue()}
    assert priorities == {"a": 7, "b": 9, "c": 6}
