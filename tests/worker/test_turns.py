"""Of an entrypoint in threads or processes a worker claims no more than it can run."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from holdfast import Holdfast, Job, JobId, Status
from holdfast.executors import ThreadExecutor
from holdfast.models import Cancellation, Room, Want
from holdfast.settings import WorkerSettings
from holdfast.worker import slots
from holdfast.worker.turns import Turns
from tests.worker.rig import Watch, ending, ends, eventually, the_log, the_row, working

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.task import EntrypointExecutorParameters
    from holdfast.worker.hand import Lease
    from tests.worker.conftest import NewWorker

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def lease(entrypoint: str, name: str) -> Lease:
    """As far as turns look at it."""
    found = SimpleNamespace(
        name=name, entrypoint=SimpleNamespace(name=entrypoint), cancellation=Cancellation()
    )
    return cast("Lease", found)


class Desk:
    """Turns of an entrypoint with two places, "slow", beside one without such a bound, "quick"."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.handed_back: list[str] = []
        self.changed = asyncio.Event()
        self.room = Room(2)
        wants = [Want("slow", MINUTE, room=self.room), Want("quick", MINUTE)]
        self.turns = Turns(wants, WorkerSettings(), self._start, self._hand_back, self.changed.set)

    def begin(self, names: str, entrypoint: str = "slow") -> list[Lease]:
        leases = [lease(entrypoint, name) for name in names]
        self.turns.begin(leases)
        return leases

    def offered(self, coming: Sequence[Any] = ()) -> int:
        self.turns.offer(coming)
        return self.room.left

    def _start(self, leases: Sequence[Any]) -> None:
        self.started += [one.name for one in leases]

    def _hand_back(self, leases: Sequence[Any]) -> None:
        self.handed_back += [one.name for one in leases]
        self.changed.set()


async def test_each_claim_is_offered_what_has_a_place() -> None:
    desk = Desk()
    assert desk.offered() == 2
    assert desk.offered([SimpleNamespace(entrypoint="slow")]) == 1
    [first] = desk.begin("a")
    desk.begin("xyz", "quick")
    assert desk.offered() == 1
    desk.begin("bc")
    assert (desk.started, len(desk.turns)) == (list("axyzb"), 1)
    assert (desk.offered(), desk.turns.reopened) == (0, False)
    desk.turns.ended(first)
    assert (desk.started[-1], desk.turns.reopened) == ("c", False)
    desk.turns.ended(first)
    assert (desk.turns.reopened, desk.offered(), desk.turns.reopened) == (True, 1, False)
    # Another entrypoint may have work for the worker all the time.
    assert not desk.turns.full


async def test_short_jobs_are_claimed_ahead_and_handed_back_when_the_next_ones_are_long() -> None:
    desk = Desk()
    desk.offered()
    first, second = desk.begin("ab")
    desk.room.left = 0
    for one in (first, second):
        desk.turns.ended(one)
    desk.turns.expect(steady=True)
    assert desk.offered() == 6
    desk.begin("cdef")
    desk.changed.clear()
    await ends(desk.changed.wait())
    assert (desk.started, desk.handed_back) == (list("abcd"), ["e", "f"])
    assert desk.offered() == 0


async def test_a_thread_that_cannot_be_stopped_has_its_place_until_it_ends() -> None:
    desk = Desk()
    [deaf, _] = desk.begin("ab")
    thread = deaf.cancellation.runs_on = Future[Any]()
    desk.turns.ended(deaf)
    assert desk.offered() == 0
    await asyncio.to_thread(thread.set_result, None)
    await ends(desk.changed.wait())
    assert desk.turns.reopened
    assert desk.offered() == 1


async def test_a_thread_that_ends_after_its_worker_troubles_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    thread = Future[Any]()

    async def work() -> None:
        desk = Desk()
        [deaf] = desk.begin("a")
        deaf.cancellation.runs_on = thread
        desk.turns.ended(deaf)

    await asyncio.to_thread(asyncio.run, work())
    thread.set_result(None)
    assert not caplog.records


def threads(count: int) -> Callable[[EntrypointExecutorParameters], ThreadExecutor]:
    return lambda parameters: ThreadExecutor(parameters, max_workers=count)


class Blocking:
    """A handler in two threads that waits for the test."""

    def __init__(self, hf: Holdfast, limit: int = 0) -> None:
        self.release = threading.Event()
        self._running = threading.Semaphore(0)

        @hf.entrypoint(
            "block", executor="thread", executor_factory=threads(2), concurrency_limit=limit
        )
        def block(job: Job) -> None:
            self._running.release()
            self.release.wait(60)

    async def until_running(self, count: int) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(self._running.acquire, timeout=30)


async def picked(hf: Holdfast) -> int:
    sizes = await hf.queries.queue_size()
    return sum(size.count for size in sizes if size.status is Status.PICKED)


async def test_what_one_worker_has_no_thread_for_is_left_to_the_others(
    new_worker: NewWorker,
) -> None:
    busy, idle = new_worker(), new_worker()
    first, second, watch = Blocking(busy), Blocking(idle), Watch(busy)

    @busy.entrypoint("quick")
    async def quick(job: Job) -> None:
        await asyncio.sleep(0)

    jobs = await busy.queries.enqueue(["block"] * 7)
    async with working(busy):
        await first.until_running(2)
        # By the end of another claim it would have had them all.
        await busy.queries.enqueue("quick")
        await watch.until_settled()
        assert (await picked(busy), busy.queue_manager.running) == (2, 2)
        async with working(idle):
            await second.until_running(2)
            second.release.set()
            await second.until_running(3)
        first.release.set()

    states = {status for _, status in await busy.queries.job_status(jobs)}
    assert states == {Status.SUCCESSFUL}


@pytest.mark.parametrize("limit", [0, 1])
async def test_all_jobs_are_run_in_few_threads(hf: Holdfast, limit: int) -> None:
    """Each place that becomes free is claimed for, without waiting for a poll."""
    blocking = Blocking(hf, limit)
    blocking.release.set()
    async with working(hf, dequeue_timeout=HOUR):
        jobs = await hf.queries.enqueue(["block"] * 100)

        async def done() -> bool:
            found = await hf.queries.job_status(jobs)
            return {status for _, status in found} == {Status.SUCCESSFUL}

        await eventually(done)


async def test_a_worker_without_a_free_thread_hears_of_work_when_it_has_one(hf: Holdfast) -> None:
    blocking, watch = Blocking(hf), Watch(hf)
    async with working(hf, dequeue_timeout=HOUR):
        await hf.queries.enqueue(["block"] * 2)
        await blocking.until_running(2)
        await hf.queries.enqueue("block")
        blocking.release.set()
        await watch.until_settled(3)


async def test_what_was_claimed_ahead_of_a_thread_is_handed_back_by_a_worker_that_stops(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a machine that stands still for a moment the stop might come too late.
    monkeypatch.setattr(slots, "_PATIENCE", 3600.0)
    blocking, watch = Blocking(hf), Watch(hf)
    jobs = await hf.queries.enqueue(["block"] * 4)
    async with working(hf, drain_timeout=HOUR):
        await blocking.until_running(2)
        # As if two others had just ended during a claim.
        hf.queue_manager._turns._places["block"].slots.expect(2)
        hf.queue_manager._hand.changed.set()
        await watch.until(lambda: sum(len(claim.jobs) for claim in watch.claims) == 4)
        hf.shutdown.set()
        await watch.until_settled(2)
        assert hf.queue_manager.running == 2
        blocking.release.set()

    assert (
        await ends_of(hf, jobs)
        == [(Status.SUCCESSFUL, None)] * 2 + [(Status.QUEUED, "not started")] * 2
    )


async def ends_of(hf: Holdfast, jobs: Sequence[JobId]) -> list[tuple[Status, str | None]]:
    entries = [await ending(hf, job) for job in jobs]
    return [(entry.status, entry.reason) for entry in entries]


async def test_a_job_waits_in_the_queue_for_a_thread_that_outlasts_its_timeout(
    hf: Holdfast,
) -> None:
    release, ran = threading.Event(), list[JobId]()

    @hf.entrypoint(
        "deaf",
        executor="thread",
        executor_factory=threads(1),
        timeout=timedelta(milliseconds=100),
    )
    def deaf(job: Job) -> None:
        if job.id == first:
            release.wait(60)
        ran.append(job.id)

    watch = Watch(hf)
    first, second = await hf.queries.enqueue(["deaf", "deaf"])
    async with working(hf, dequeue_timeout=HOUR):
        await watch.until_settled()
        assert (await the_row(hf, second)).status == Status.QUEUED
        release.set()
        await watch.until_settled(2)

    assert ran == [first, second]
    assert await ends_of(hf, [first, second]) == [
        (Status.EXCEPTION, None),
        (Status.SUCCESSFUL, None),
    ]


async def test_a_job_that_never_got_a_thread_is_handed_back_whatever_its_timeout(
    hf: Holdfast,
) -> None:
    """As where two entrypoints share the threads of one executor."""
    started, release = threading.Event(), threading.Event()
    shared: list[ThreadExecutor] = []

    def one_pool(parameters: EntrypointExecutorParameters) -> ThreadExecutor:
        shared.append(ThreadExecutor(parameters, max_workers=1))
        shared[-1]._threads = shared[0]._threads
        return shared[-1]

    @hf.entrypoint("first", executor="thread", executor_factory=one_pool)
    def first(job: Job) -> None:
        started.set()
        release.wait(60)

    @hf.entrypoint(
        "second",
        executor="thread",
        executor_factory=one_pool,
        timeout=timedelta(milliseconds=100),
    )
    def second(job: Job) -> None:
        pass

    watch = Watch(hf)
    async with working(hf):
        await hf.queries.enqueue("first")
        assert await asyncio.to_thread(started.wait, 30)
        [job_id] = await hf.queries.enqueue("second")
        await watch.until_settled()
        release.set()

        async def successful() -> bool:
            [(_, status)] = await hf.queries.job_status([job_id])
            return status is Status.SUCCESSFUL

        await eventually(successful)

    *earlier, last = [(entry.status, entry.reason) for entry in await the_log(hf, job_id)]
    assert set(earlier) == {(Status.QUEUED, "not started")}
    assert last == (Status.SUCCESSFUL, None)
