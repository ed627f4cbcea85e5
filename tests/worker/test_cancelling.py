"""A running handler is asked to stop, and what it does after that changes nothing."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import Context, Holdfast, Job, JobId, Status
from tests.worker.workers import Watch, ending, ends, eventually, the_log, the_row, working

if TYPE_CHECKING:
    from tests.worker.conftest import NewWorker

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


class Endless:
    """A handler that runs until it is cancelled, and says how that went."""

    def __init__(self, hf: Holdfast, *, returns: bool = False) -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.context: Context | None = None

        @hf.entrypoint("endless")
        async def endless(job: Job, context: Context) -> None:
            self.context = context
            self.started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                if not returns:
                    raise

    @property
    def told(self) -> tuple[bool, bool]:
        """Whether the handler can see that it was cancelled, and that its lease is lost."""
        assert self.context is not None
        return self.context.cancellation.cancel_called, self.context.lease_lost


@pytest.mark.parametrize("returns", [False, True], ids=["raises", "returns as if all were well"])
async def test_a_cancelled_job_is_stopped_at_once_and_logged_once(
    hf: Holdfast, returns: bool
) -> None:
    handler, watch = Endless(hf, returns=returns), Watch(hf)
    # Under a lease of an hour no renewal can be what tells the handler.
    async with working(hf, heartbeat_timeout=HOUR):
        [job_id] = await hf.queries.enqueue("endless")
        await ends(handler.started.wait())
        await eventually(lambda: listening(hf))
        assert await hf.queries.mark_job_as_cancelled([job_id], actor="me") == {job_id}
        await ends(handler.cancelled.wait())
        await watch.until_lost()

    assert handler.told == (True, False)
    entry = await ending(hf, job_id)
    assert (entry.status, entry.actor) == (Status.CANCELED, "me")


async def listening(hf: Holdfast) -> bool:
    """Whether a hint can arrive; before that a cancellation would wait for the renewal."""
    return hf.queue_manager.listening


async def test_a_cancellation_without_a_notification_is_found_by_the_renewal(
    pg_hf: Holdfast, witness: Any
) -> None:
    handler, watch = Endless(pg_hf), Watch(pg_hf)
    async with working(pg_hf, heartbeat_timeout=SECOND):
        [job_id] = await pg_hf.queries.enqueue("endless")
        await ends(handler.started.wait())
        await witness.execute("delete from holdfast where id = $1", job_id)
        await ends(handler.cancelled.wait())
        await watch.until_lost()

    assert handler.told == (True, True)


@pytest.mark.parametrize("returns", [False, True], ids=["raises", "returns as if all were well"])
async def test_a_lost_lease_stops_the_handler_and_its_outcome_changes_nothing(
    pg_hf: Holdfast, witness: Any, returns: bool
) -> None:
    handler, watch = Endless(pg_hf, returns=returns), Watch(pg_hf)
    async with working(pg_hf, heartbeat_timeout=SECOND):
        [job_id] = await pg_hf.queries.enqueue("endless")
        await ends(handler.started.wait())
        await witness.execute(
            "update holdfast set claim_token = gen_random_uuid(), claimed_by = 'other',"
            " heartbeat = clock_timestamp() + interval '1 hour' where id = $1",
            job_id,
        )
        stolen = await the_row(pg_hf, job_id)
        await ends(handler.cancelled.wait())
        [lost] = await watch.until_lost()

    assert handler.told == (True, True)
    assert lost.job.id == job_id
    assert await the_row(pg_hf, job_id) == stolen
    assert await the_log(pg_hf, job_id) == []


async def test_a_thread_can_see_that_it_was_cancelled(hf: Holdfast) -> None:
    started, stopped = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @hf.entrypoint("patient", executor="thread")
    def patient(job: Job, context: Context) -> None:
        loop.call_soon_threadsafe(started.set)
        while not context.cancellation.cancel_called:
            stopped.wait(0.01)
        stopped.set()

    watch = Watch(hf)
    async with working(hf, heartbeat_timeout=HOUR):
        [job_id] = await hf.queries.enqueue("patient")
        await ends(started.wait())
        await eventually(lambda: listening(hf))
        await hf.queries.mark_job_as_cancelled([job_id])
        await watch.until_lost()
        assert await asyncio.to_thread(stopped.wait, 30)

    assert (await ending(hf, job_id)).status == Status.CANCELED


async def test_a_job_cancelled_while_it_is_queued_never_starts(new_worker: NewWorker) -> None:
    ran: list[JobId] = []
    hf = new_worker()

    @hf.entrypoint("one")
    async def one(job: Job) -> None:
        ran.append(job.id)

    canceled, kept = await hf.queries.enqueue(["one", "one"])
    await hf.queries.mark_job_as_cancelled([canceled])
    await ends(hf.run(mode="drain"))

    assert ran == [kept]
    assert (await ending(hf, canceled)).status == Status.CANCELED
