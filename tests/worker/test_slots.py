"""Short jobs are claimed before there is a slot for them; long jobs are released."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Holdfast, Job, Status
from holdfast.settings import WorkerSettings
from holdfast.worker import dispatcher
from holdfast.worker.slots import Slots
from tests.worker.desk import Desk
from tests.worker.workers import Gauge, Watch, ends, eventually, the_log, worker_of, working

if TYPE_CHECKING:
    from tests.worker.conftest import NewWorker


async def test_what_finds_no_slot_begins_in_its_order_as_slots_become_free() -> None:
    desk = Desk(concurrency=2)
    await desk.begin("abc")
    await desk.begin("d")
    assert (desk.started, desk.waiting) == (["a", "b"], 2)
    desk.end()
    assert (desk.started, desk.waiting) == (["a", "b", "c"], 1)
    await desk.begin("e")
    desk.end()
    desk.end()
    assert (desk.started, desk.waiting) == (list("abcde"), 0)
    # Two of them still have a slot: there is one for the next when both have ended.
    desk.end()
    desk.end()
    await desk.begin("fgh")
    desk.dispatcher.release_waiting()
    assert (desk.started, desk.released) == (list("abcdefg"), ["h"])


async def test_what_waits_for_a_slot_in_vain_is_released_and_no_more_is_claimed_ahead() -> None:
    desk = Desk(concurrency=1)
    desk.dispatcher.slots.expect(5)
    await desk.begin("abc")
    await desk.until_released(2)
    assert (desk.started, desk.released) == (["a"], ["b", "c"])
    assert (desk.dispatcher.slots.ahead, desk.waiting) == (0, 0)
    desk.end()
    await desk.begin("d")
    assert desk.started == ["a", "d"]


async def test_jobs_keep_their_places_when_the_event_loop_was_blocked_meanwhile() -> None:
    desk = Desk(concurrency=1)
    desk.dispatcher.slots.expect(5)
    await desk.begin("abc")
    timer = desk.dispatcher._late_timer
    time.sleep(2 * dispatcher.SLOT_WAIT_SECONDS)  # noqa: ASYNC251 - it blocks the loop on purpose
    # The timer comes before the handlers that would have ended meanwhile.
    while desk.dispatcher._late_timer is timer:  # noqa: ASYNC110 - nothing else may run between
        await asyncio.sleep(0)
    assert (desk.started, desk.released, desk.waiting) == (["a"], [], 2)
    # Only once: if no slot becomes free in the same time again, other workers get them.
    await desk.until_released(2)
    assert desk.released == ["b", "c"]


@pytest.mark.parametrize(
    ("settings", "ended", "ahead"),
    [
        ({"concurrency": 100, "batch_size": 500}, 0, 0),
        ({"concurrency": 100, "batch_size": 500}, 30, 120),
        ({"concurrency": 100, "batch_size": 500}, 800, 900),
        ({"concurrency": 100, "batch_size": 60}, 30, 20),
        ({"concurrency": 1000}, 500, 0),
    ],
    ids=["long jobs", "short jobs", "as many as two batches", "small batches", "room for batches"],
)
def test_as_many_are_claimed_ahead_as_end_during_four_claims(
    settings: dict[str, Any], ended: int, ahead: int
) -> None:
    slots = Slots(WorkerSettings(**settings))
    slots.expect(ended)
    assert slots.ahead == ahead
    # One claim during which nothing ended says little: jobs that begin together end together.
    slots.expect(0)
    assert slots.ahead >= ahead * 0.8
    slots.expect_none()
    assert slots.ahead == 0


@pytest.mark.parametrize(
    ("claim_seconds", "ahead"), [(3600.0, 8), (1e-9, 0)], ids=["short", "long"]
)
async def test_jobs_that_end_before_the_next_claim_is_sent_count_as_well(
    claim_seconds: float, ahead: int
) -> None:
    desk = Desk(concurrency=2)
    await desk.begin("ab")
    desk.end()
    desk.end()
    desk.dispatcher.expect(claim_seconds, steady=True, came_short=False)
    assert desk.dispatcher.slots.ahead == ahead


async def test_no_more_handlers_run_than_there_are_slots(hf: Holdfast) -> None:
    gauge = Gauge()

    @hf.entrypoint("short")
    async def short(job: Job) -> None:
        with gauge:
            await asyncio.sleep(int(job.payload or b"") * 0.0005)

    await hf.queries.enqueue(["short"] * 400, [str(n % 7).encode() for n in range(400)])
    await ends(hf.run(mode="drain", concurrency=4))

    assert (gauge.total, gauge.most) == (400, 4)


async def claims_ahead(hf: Holdfast, watch: Watch, count: int) -> None:
    """As if that many jobs had just ended during a claim, beside one that runs in the only slot."""
    worker_of(hf).dispatcher.slots.expect(count)
    worker_of(hf).lease_set.changed.set()
    await watch.until(lambda: sum(len(claim.jobs) for claim in watch.claims) > count)


async def test_what_was_claimed_ahead_goes_to_another_worker_when_jobs_turn_out_long(
    new_worker: NewWorker,
) -> None:
    busy, idle = new_worker(), new_worker()
    release, under_way, ran_by = asyncio.Event(), asyncio.Event(), list[Holdfast]()
    watch = Watch(busy)

    def serve(hf: Holdfast) -> None:
        @hf.entrypoint("one")
        async def one(job: Job) -> None:
            ran_by.append(hf)
            under_way.set()
            if hf is busy:
                await release.wait()

    serve(busy)
    serve(idle)
    jobs = await busy.queries.enqueue(["one"] * 3)

    async def all_but_one_done() -> bool:
        return len(await idle.queries.get_jobs(jobs)) == 1

    async with working(busy, concurrency=1):
        await ends(under_way.wait())
        await claims_ahead(busy, watch, 2)
        assert busy.queue_manager.running == 1
        async with working(idle):
            await watch.until_settled(2)
            ahead = [job for job, _, _ in watch.settled]
            for job in ahead:
                [release_entry, *_] = await the_log(busy, job.id)
                assert (release_entry.status, release_entry.reason) == (
                    Status.QUEUED,
                    "no slot was free",
                )
            await eventually(all_but_one_done)
        release.set()
    assert ran_by == [busy, idle, idle]


async def test_what_was_claimed_ahead_is_released_by_a_worker_that_stops(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a machine that stands still for a moment the stop might come too late.
    monkeypatch.setattr(dispatcher, "SLOT_WAIT_SECONDS", 3600.0)
    release, started = asyncio.Event(), asyncio.Event()
    watch = Watch(hf)

    @hf.entrypoint("one")
    async def one(job: Job) -> None:
        started.set()
        await release.wait()

    [first, *rest] = await hf.queries.enqueue(["one"] * 3)
    async with working(hf, concurrency=1):
        await ends(started.wait())
        await claims_ahead(hf, watch, 2)
        hf.shutdown.set()
        await watch.until_settled(2)
        release.set()

    assert [entry.status for entry in await the_log(hf, first)] == [Status.SUCCESSFUL]
    for job in rest:
        [entry] = await the_log(hf, job)
        assert (entry.status, entry.reason) == (Status.QUEUED, "not started")
