"""Short jobs are claimed before there is a slot for them; nobody keeps what turns out long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from holdfast import Holdfast, Job, Status
from holdfast.settings import WorkerSettings
from holdfast.worker import slots
from holdfast.worker.slots import Slots
from tests.worker.rig import Gauge, Watch, ends, eventually, the_log, working

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.worker.hand import Lease
    from tests.worker.conftest import NewWorker


class Desk:
    """Slots whose jobs end when the test says so."""

    def __init__(self, **settings: Any) -> None:
        self.started: list[str] = []
        self.handed_back: list[str] = []
        self.gave_up = asyncio.Event()
        self.slots = Slots(WorkerSettings(**settings), self._start, self._hand_back)

    def begin(self, names: str) -> None:
        self.slots.begin(cast("Sequence[Lease]", list(names)))

    def _start(self, names: Sequence[Any]) -> None:
        self.started += names

    def _hand_back(self, names: Sequence[Any]) -> None:
        self.handed_back += names
        self.gave_up.set()


async def test_what_finds_no_slot_begins_in_its_order_as_slots_become_free() -> None:
    desk = Desk(concurrency=2)
    desk.begin("abc")
    desk.begin("d")
    assert (desk.started, len(desk.slots)) == (["a", "b"], 2)
    desk.slots.ended()
    assert (desk.started, len(desk.slots)) == (["a", "b", "c"], 1)
    desk.begin("e")
    desk.slots.ended()
    desk.slots.ended()
    assert (desk.started, len(desk.slots)) == (list("abcde"), 0)
    # Three of them still have a slot: there is one for the next when two have ended.
    desk.slots.ended()
    desk.slots.ended()
    desk.begin("fgh")
    left: list[Any] = list(desk.slots.take_waiting())
    assert (desk.started, left) == (list("abcdefg"), ["h"])


async def test_what_waits_for_a_slot_in_vain_is_handed_back_and_no_more_is_claimed_ahead() -> None:
    desk = Desk(concurrency=1)
    desk.slots.expect(5)
    desk.begin("abc")
    await ends(desk.gave_up.wait())
    assert (desk.started, desk.handed_back) == (["a"], ["b", "c"])
    assert (desk.slots.ahead, len(desk.slots)) == (0, 0)
    desk.slots.ended()
    desk.begin("d")
    assert desk.started == ["a", "d"]


@pytest.mark.parametrize(
    ("settings", "ended", "ahead"),
    [
        ({"concurrency": 100, "batch_size": 500}, 0, 0),
        ({"concurrency": 100, "batch_size": 500}, 30, 60),
        ({"concurrency": 100, "batch_size": 500}, 800, 900),
        ({"concurrency": 100, "batch_size": 60}, 30, 20),
        ({}, 500, 0),
    ],
    ids=["long jobs", "short jobs", "as many as two batches", "small batches", "room for batches"],
)
async def test_as_many_are_claimed_ahead_as_end_during_two_claims(
    settings: dict[str, int], ended: int, ahead: int
) -> None:
    desk = Desk(**settings)
    desk.slots.expect(ended)
    assert desk.slots.ahead == ahead
    # One claim during which nothing ended says little: jobs that begin together end together.
    desk.slots.expect(0)
    assert desk.slots.ahead >= ahead * 0.8
    desk.slots.expect_none()
    assert desk.slots.ahead == 0


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
    hf.queue_manager._slots.expect(count)
    hf.queue_manager._hand.changed.set()
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
                [handed_back, *_] = await the_log(busy, job.id)
                assert (handed_back.status, handed_back.reason) == (
                    Status.QUEUED,
                    "no slot was free",
                )
            await eventually(all_but_one_done)
        release.set()
    assert ran_by == [busy, idle, idle]


async def test_what_was_claimed_ahead_is_handed_back_by_a_worker_that_stops(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a machine that stands still for a moment the stop might come too late.
    monkeypatch.setattr(slots, "_PATIENCE", 3600.0)
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
