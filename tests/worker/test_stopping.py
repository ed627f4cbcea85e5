"""How a worker stops: nothing new, what runs may finish, and what cannot is released."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Context, Holdfast, Job, JobId, Status
from tests.faults.proxy import Proxy
from tests.worker.workers import (
    ClaimBrake,
    Gauge,
    Watch,
    ending,
    ends,
    eventually,
    the_row,
    working,
)

if TYPE_CHECKING:
    from tests.servers import Database
    from tests.worker.conftest import NewWorker

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


class Stubborn:
    """A handler that waits for the test."""

    def __init__(self, hf: Holdfast, name: str = "stubborn") -> None:
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.gauge = Gauge()

        @hf.entrypoint(name)
        async def stubborn(job: Job) -> None:
            with self.gauge:
                self.started.set()
                await self.release.wait()


async def is_released(hf: Holdfast, job_id: JobId, reason: str) -> None:
    job, entry = await the_row(hf, job_id), await ending(hf, job_id)
    assert (job.status, job.attempts, job.recoveries) == (Status.QUEUED, 0, 0)
    assert (job.claim_token, job.claimed_by, job.lease) == (None, None, None)
    assert (entry.status, entry.reason) == (Status.QUEUED, reason)


async def test_a_stop_asked_for_before_the_start_is_not_lost(hf: Holdfast) -> None:
    handler = Stubborn(hf)
    [job_id] = await hf.queries.enqueue("stubborn")
    hf.shutdown.set()
    await ends(hf.run(drain_timeout=HOUR, dequeue_timeout=HOUR))

    assert handler.gauge.total == 0
    assert (await the_row(hf, job_id)).status == Status.QUEUED


@pytest.mark.parametrize("step", range(0, 60, 4))
async def test_a_stop_asked_for_during_the_start_is_not_lost(hf: Holdfast, step: int) -> None:
    Stubborn(hf)
    run = asyncio.create_task(hf.run(dequeue_timeout=HOUR))
    for _ in range(step):
        await asyncio.sleep(0)
    hf.shutdown.set()
    await ends(run)


async def test_a_running_job_may_finish_and_nothing_new_is_claimed(hf: Holdfast) -> None:
    handler, watch = Stubborn(hf), Watch(hf)
    async with working(hf, drain_timeout=HOUR, concurrency=1):
        first, second = await hf.queries.enqueue(["stubborn", "stubborn"])
        await ends(handler.started.wait())
        hf.shutdown.set()
        await eventually(lambda: in_state(hf, "draining"))
        handler.release.set()
        await watch.until_settled()

    assert handler.gauge.total == 1
    assert (await ending(hf, first)).status == Status.SUCCESSFUL
    assert (await the_row(hf, second)).status == Status.QUEUED
    assert await hf.queries.list_workers() == []


async def in_state(hf: Holdfast, state: str) -> bool:
    return hf.queue_manager.state == state


async def test_at_the_deadline_a_job_is_released_and_nothing_is_counted(hf: Holdfast) -> None:
    handler = Stubborn(hf)
    async with working(hf, drain_timeout=timedelta(milliseconds=100)):
        [job_id] = await hf.queries.enqueue("stubborn")
        await ends(handler.started.wait())

    await is_released(hf, job_id, "shutdown")


async def test_a_worker_in_a_hurry_does_not_wait_for_the_deadline(hf: Holdfast) -> None:
    handler = Stubborn(hf)
    async with working(hf, drain_timeout=HOUR):
        [job_id] = await hf.queries.enqueue("stubborn")
        await ends(handler.started.wait())
        hf.shutdown.set()
        await eventually(lambda: in_state(hf, "draining"))
        hf.queue_manager.fast_stop.set()

    await is_released(hf, job_id, "shutdown")


async def test_leases_are_renewed_until_the_last_job_has_ended(new_worker: NewWorker) -> None:
    stopping, other = new_worker(), new_worker()
    first, second = Stubborn(stopping), Stubborn(other)
    lease = timedelta(seconds=4)
    watch = Watch(stopping)
    async with working(stopping, heartbeat_timeout=lease, drain_timeout=HOUR):
        [job_id] = await stopping.queries.enqueue("stubborn")
        await ends(first.started.wait())
        stopping.shutdown.set()
        async with working(other, heartbeat_timeout=lease, dequeue_timeout=lease):
            claimed = (await the_row(stopping, job_id)).claimed_at
            assert claimed is not None

            async def after_the_first_lease() -> bool:
                return await stopping.queries.now() > claimed + 1.5 * lease

            await eventually(after_the_first_lease)
            first.release.set()
            await watch.until_settled()

    assert (first.gauge.total, second.gauge.total) == (1, 0)
    entry = await ending(stopping, job_id)
    assert (entry.status, entry.recoveries) == (Status.SUCCESSFUL, 0)


async def test_a_job_is_not_released_before_its_thread_has_ended(hf: Holdfast) -> None:
    started, told, release = (threading.Event() for _ in range(3))

    @hf.entrypoint("slow", executor="thread", accepts_context=True)
    def slow(job: Job, context: Context) -> None:
        started.set()
        while not context.cancellation.cancel_called:
            release.wait(0.005)
        told.set()
        release.wait(60)
        raise InterruptedError

    [job_id] = await hf.queries.enqueue("slow")
    async with working(hf, drain_timeout=timedelta(0)):
        assert await asyncio.to_thread(started.wait, 30)
        hf.shutdown.set()
        assert await asyncio.to_thread(told.wait, 30)
        assert (await the_row(hf, job_id)).status == Status.PICKED
        release.set()

    await is_released(hf, job_id, "shutdown")


async def test_the_job_of_a_thread_that_outlives_its_worker_is_left_to_its_lease(
    pg_hf: Holdfast,
) -> None:
    started, release = threading.Event(), threading.Event()

    @pg_hf.entrypoint("deaf", executor="thread")
    def deaf(job: Job) -> None:
        started.set()
        release.wait(60)

    [job_id] = await pg_hf.queries.enqueue("deaf")
    try:
        async with working(pg_hf, drain_timeout=timedelta(0)):
            assert await asyncio.to_thread(started.wait, 30)
        assert (await the_row(pg_hf, job_id)).status == Status.PICKED
    finally:
        release.set()


async def test_a_handler_that_ignores_its_cancellation_does_not_keep_the_worker(
    pg_hf: Holdfast,
) -> None:
    ended = asyncio.Event()
    release = asyncio.Event()
    started = asyncio.Event()

    @pg_hf.entrypoint("deaf")
    async def deaf(job: Job) -> None:
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        ended.set()

    async with working(pg_hf, drain_timeout=timedelta(0)):
        [job_id] = await pg_hf.queries.enqueue("deaf")
        await ends(started.wait())

    # It is unknown what it still does, so its lease is left to expire.
    assert (await the_row(pg_hf, job_id)).status == Status.PICKED
    release.set()
    await ends(ended.wait())


async def test_a_cancelled_run_releases_its_jobs(hf: Holdfast) -> None:
    handler = Stubborn(hf)
    run = asyncio.create_task(hf.run(drain_timeout=HOUR))
    [job_id] = await hf.queries.enqueue("stubborn")
    await ends(handler.started.wait())
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ends(run)

    assert handler.gauge.now == 0
    await is_released(hf, job_id, "shutdown")


async def test_a_claim_on_its_way_when_the_run_is_cancelled_is_released(pg18: Database) -> None:
    async with (
        Proxy(pg18.dsn) as proxy,
        Holdfast.connect(proxy.dsn) as hf,
        Holdfast.connect(pg18.dsn) as looker,
    ):
        await hf.install()
        handler, watch = Stubborn(hf), Watch(hf)
        handler.release.set()
        run = asyncio.create_task(hf.run(connections=7))
        # After it the connection is open and idle.
        await looker.queries.enqueue("stubborn")
        await watch.until_settled()
        await proxy.hold_replies("claim")
        [job_id] = await looker.queries.enqueue("stubborn")

        async def picked() -> bool:
            return (await the_row(looker, job_id)).status == Status.PICKED

        await eventually(picked)
        run.cancel()
        await proxy.flow()
        with pytest.raises(asyncio.CancelledError):
            await ends(run)
        assert handler.gauge.total == 1
        await is_released(looker, job_id, "claim reply lost")
        assert await looker.queries.list_workers() == []


async def test_jobs_claimed_in_the_moment_of_the_stop_are_released_unstarted(
    pg_hf: Holdfast, witness: Any
) -> None:
    handler = Stubborn(pg_hf)
    async with ClaimBrake(witness) as brake, working(pg_hf, drain_timeout=HOUR):
        [job_id] = await pg_hf.queries.enqueue("stubborn")
        await brake.until_braked()
        pg_hf.shutdown.set()
        await asyncio.sleep(0)
        await brake.release()

    assert handler.gauge.total == 0
    await is_released(pg_hf, job_id, "not started")


async def test_a_silent_database_does_not_keep_the_worker_from_stopping(pg18: Database) -> None:
    async with Proxy(pg18.dsn) as proxy, Holdfast.connect(proxy.dsn, timeout=3600) as hf:
        await hf.install()
        handler = Stubborn(hf)
        await hf.queries.enqueue("stubborn")
        drain = timedelta(seconds=1)
        async with working(hf, drain_timeout=drain, dequeue_timeout=timedelta(seconds=0.1)) as run:
            await ends(handler.started.wait())
            await proxy.swallow()
            hf.shutdown.set()
            # Long before the hour that a statement may take.
            await ends(run)
        assert handler.gauge.now == 0
