"""When a worker claims, what, and how much of it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Holdfast, Job, Status
from tests.worker.workers import Gauge, Watch, ending, ends, the_row, working

if TYPE_CHECKING:
    from tests.worker.conftest import NewWorker

HOUR = timedelta(hours=1)


async def test_only_registered_entrypoints_are_claimed(hf: Holdfast) -> None:
    @hf.entrypoint("known")
    async def known(job: Job) -> None:
        await asyncio.sleep(0)

    unknown, fine = await hf.queries.enqueue(["unknown", "known"], priority=[9, 0])
    before = await the_row(hf, unknown)
    await ends(hf.run(mode="drain"))

    assert (await ending(hf, fine)).status == Status.SUCCESSFUL
    assert await the_row(hf, unknown) == before


async def test_a_worker_never_holds_more_than_it_has_slots(hf: Holdfast) -> None:
    held: list[int] = []
    gauge = Gauge()

    @hf.entrypoint("one")
    async def one(job: Job) -> None:
        with gauge:
            await asyncio.sleep(0.01)
            sizes = await hf.queries.queue_size()
            held.append(sum(size.count for size in sizes if size.status is Status.PICKED))

    await hf.queries.enqueue(["one"] * 12)
    # With slots for more than two batches nothing is claimed ahead of them.
    await ends(hf.run(mode="drain", concurrency=3, batch_size=1))

    assert (len(held), gauge.most) == (12, 3)
    # A handler that has ended gives its slot away before its outcome is written.
    assert max(held) <= 6


async def test_a_claim_takes_no_more_than_a_batch(hf: Holdfast) -> None:
    @hf.entrypoint("one")
    async def one(job: Job) -> None:
        await asyncio.sleep(0)

    watch = Watch(hf)
    await hf.queries.enqueue(["one"] * 7)
    await ends(hf.run(mode="drain", batch_size=2, concurrency=100))

    sizes = [len(claim.jobs) for claim in watch.claims]
    assert (sum(sizes), max(sizes)) == (7, 2)


async def test_a_sleeping_worker_is_woken_by_an_enqueue(hf: Holdfast) -> None:
    @hf.entrypoint("one")
    async def one(job: Job) -> None:
        await asyncio.sleep(0)

    watch = Watch(hf)
    async with working(hf, dequeue_timeout=HOUR):
        for count in range(1, 21):
            await hf.queries.enqueue("one")
            await watch.until_settled(count)


async def test_a_deferred_job_starts_when_it_is_due_and_not_before(hf: Holdfast) -> None:
    @hf.entrypoint("one")
    async def one(job: Job) -> None:
        await asyncio.sleep(0)

    watch = Watch(hf)
    far, near = await hf.queries.enqueue(
        ["one", "one"], execute_after=[HOUR, timedelta(seconds=0.7)]
    )
    due = (await the_row(hf, near)).execute_after
    async with working(hf, dequeue_timeout=HOUR):
        await watch.until_settled()

    entry = await ending(hf, near)
    assert entry.claimed_at is not None
    assert entry.claimed_at >= due
    assert (await the_row(hf, far)).status == Status.QUEUED


async def test_a_job_deferred_while_the_worker_sleeps_wakes_it_when_it_is_due(
    hf: Holdfast,
) -> None:
    @hf.entrypoint("one")
    async def one(job: Job) -> None:
        await asyncio.sleep(0)

    watch = Watch(hf)
    async with working(hf, dequeue_timeout=HOUR):
        await hf.queries.enqueue("one")
        await watch.until_settled()
        await hf.queries.enqueue("one", execute_after=timedelta(seconds=0.5))
        await watch.until_settled(2)


async def test_a_higher_priority_overtakes_a_backlog_that_never_ends(hf: Holdfast) -> None:
    overtaken, under_way = asyncio.Event(), asyncio.Event()

    @hf.entrypoint("one")
    async def one(job: Job) -> None:
        under_way.set()
        if job.priority:
            overtaken.set()
        elif not overtaken.is_set():
            await hf.queries.enqueue("one")

    await hf.queries.enqueue(["one"] * 50)
    async with working(hf, concurrency=2):
        await ends(under_way.wait())
        await hf.queries.enqueue("one", priority=5)
        await ends(overtaken.wait())


@pytest.mark.parametrize(
    ("rules", "limit"),
    [({"concurrency_limit": 2}, 2), ({"serialized_dispatch": True}, 1)],
    ids=["limit", "serialized"],
)
async def test_a_limited_entrypoint_never_exceeds_its_limit_and_delays_no_other(
    new_worker: NewWorker, rules: dict[str, Any], limit: int
) -> None:
    workers = [new_worker(), new_worker()]
    limited, free = Gauge(), Gauge()
    watch = Watch(*workers)
    for hf in workers:

        @hf.entrypoint("limited", **rules)
        async def one(job: Job) -> None:
            with limited:
                await asyncio.sleep(0.01)

        @hf.entrypoint("free")
        async def other(job: Job) -> None:
            with free:
                await asyncio.sleep(0.01)

    async with working(workers[0], dequeue_timeout=HOUR), working(workers[1]):
        await workers[0].queries.enqueue(["limited"] * 12 + ["free"] * 12)
        await watch.until_settled(24)

    assert (limited.total, free.total) == (12, 12)
    assert limited.most == limit
    assert free.most > 1
