"""Of an entrypoint in threads or processes a worker claims no more than it can run."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Holdfast, Job, JobId, Status
from holdfast.executors import ThreadExecutor
from holdfast.models import Capacity, ClaimRule
from holdfast.worker import dispatcher
from tests.worker.desk import Desk
from tests.worker.workers import Watch, ending, eventually, the_log, the_row, worker_of, working

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.task import EntrypointExecutorParameters
    from holdfast.worker.slots import Slots
    from tests.worker.conftest import NewWorker

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def slots_of(hf: Holdfast, entrypoint: str) -> Slots:
    entrypoints = worker_of(hf).dispatcher.entrypoints
    assert entrypoints is not None
    return entrypoints[entrypoint]


def bounded() -> tuple[Desk, Capacity]:
    """Slots of the entrypoint "slow", which has two, beside "quick", which has no bound."""
    room = Capacity(2)
    rules = ClaimRule("slow", MINUTE, capacity=room), ClaimRule("quick", MINUTE)
    return Desk(*rules), room


async def test_each_claim_is_offered_what_has_a_slot() -> None:
    desk, room = bounded()
    entrypoints = desk.entrypoints
    assert desk.offered(room) == 2
    [coming] = await desk.claim("0", "slow")
    assert desk.offered(room, [coming]) == 1
    [first] = await desk.begin("a", "slow")
    await desk.begin("xyz", "quick")
    assert desk.offered(room) == 1
    _, third = await desk.begin("bc", "slow")
    assert (desk.started, desk.waiting) == (list("axyzb"), 1)
    assert (desk.offered(room), entrypoints.reopened) == (0, False)
    desk.end(first)
    assert (desk.started[-1], entrypoints.reopened) == ("c", False)
    desk.end(third)
    assert (entrypoints.reopened, desk.offered(room), entrypoints.reopened) == (True, 1, False)
    # Another entrypoint may have work for the worker all the time.
    assert not entrypoints.full


async def test_short_jobs_are_claimed_ahead_and_released_when_the_next_ones_are_long() -> None:
    desk, room = bounded()
    desk.offered(room)
    first, second = await desk.begin("ab", "slow")
    room.left = 0
    for one in (first, second):
        desk.end(one)
    desk.entrypoints.expect(1.0, steady=True)
    assert desk.offered(room) == 10
    await desk.begin("cdef", "slow")
    await desk.until_released(2)
    assert (desk.started, desk.released) == (list("abcd"), ["e", "f"])
    assert desk.offered(room) == 0


async def test_a_thread_that_cannot_be_stopped_has_its_slot_until_it_ends() -> None:
    desk, room = bounded()
    [deaf, _] = await desk.begin("ab", "slow")
    thread = deaf.cancellation.runs_on = Future[Any]()
    desk.end(deaf)
    assert desk.offered(room) == 0
    await asyncio.to_thread(thread.set_result, None)
    entrypoints = desk.entrypoints
    assert await desk.lease_set.until(lambda: entrypoints.reopened, seconds=30)
    assert desk.offered(room) == 1


async def test_a_thread_that_ends_after_its_worker_does_no_harm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    thread = Future[Any]()

    async def work() -> None:
        desk, _ = bounded()
        [deaf] = await desk.begin("a", "slow")
        deaf.cancellation.runs_on = thread
        desk.end(deaf)

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


async def test_what_was_claimed_ahead_of_a_thread_is_released_by_a_worker_that_stops(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a machine that stands still for a moment the stop might come too late.
    monkeypatch.setattr(dispatcher, "SLOT_WAIT_SECONDS", 3600.0)
    blocking, watch = Blocking(hf), Watch(hf)
    jobs = await hf.queries.enqueue(["block"] * 4)
    async with working(hf, drain_timeout=HOUR):
        await blocking.until_running(2)
        # As if two others had just ended during a claim.
        slots_of(hf, "block").expect(2)
        worker_of(hf).lease_set.changed.set()
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


async def test_a_job_that_never_got_a_thread_is_released_whatever_its_timeout(
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
