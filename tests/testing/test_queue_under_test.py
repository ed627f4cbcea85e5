"""What the fixtures give an application's tests, in memory and on PostgreSQL."""

from __future__ import annotations

import asyncio
import gc
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from holdfast import (
    Context,
    Holdfast,
    InvalidArguments,
    InvalidInput,
    Job,
    RetryRequested,
    Status,
    TaskGroup,
)
from holdfast.models import Retried
from holdfast.testing import make_job

if TYPE_CHECKING:
    from holdfast.testing import QueueUnderTest

HOUR = timedelta(hours=1)


def shop() -> tuple[Holdfast, list[Any], Any]:
    """An application with a queue of its own, which cannot be reached."""
    hf = Holdfast.connect("postgresql://nobody@127.0.0.1:1/nowhere")
    shipped: list[Any] = []

    @hf.task(store_result=True)
    async def ship(order: int, *, express: bool = False) -> int:
        if order < 0:
            raise ValueError("no such order")
        shipped.append((order, express))
        return order * 2

    return hf, shipped, ship


async def test_what_an_application_enqueues_is_found(queue: QueueUnderTest) -> None:
    hf, _, ship = shop()
    queue.adopt(hf)
    await queue.refute_enqueued(ship)
    await ship.enqueue(1)
    await ship.enqueue(2, express=True)
    job = await queue.assert_enqueued(ship, order=2)
    assert b"true" in (job.payload or b"")
    await queue.assert_enqueued(ship, count=2)
    await queue.refute_enqueued(ship, order=1, express=True)
    with pytest.raises(AssertionError, match=r"found 0; in the queue are .*order"):
        await queue.assert_enqueued(ship, order=3)
    with pytest.raises(AssertionError, match="expected 1 job"):
        await queue.assert_enqueued(ship, count=1)
    with pytest.raises(AssertionError, match="expected no job"):
        await queue.refute_enqueued(ship, order=1)


async def test_arguments_are_compared_as_the_task_writes_them(queue: QueueUnderTest) -> None:
    @queue.task(name="connect")
    async def connect(
        password: SecretStr, at: datetime | None = None, retries: int = 1
    ) -> None: ...

    at = datetime(2026, 1, 2, tzinfo=UTC)
    await connect.enqueue(SecretStr("one"), at)
    await queue.assert_enqueued(connect, password=SecretStr("one"), at=at)
    await queue.refute_enqueued(connect, password=SecretStr("two"))
    await queue.refute_enqueued(connect, retries=1)
    for ask in (queue.refute_enqueued, queue.assert_enqueued):
        with pytest.raises(InvalidArguments, match="no argument passwort"):
            await ask(connect, passwort="one")


async def test_entrypoints_are_compared_by_the_fields_of_the_job(queue: QueueUnderTest) -> None:
    await queue.queries.enqueue("mail", b"1", priority=3)
    await queue.assert_enqueued("mail", payload=b"1", priority=3)
    await queue.refute_enqueued("mail", payload=b"2")
    with pytest.raises(InvalidInput, match="no field size"):
        await queue.assert_enqueued("mail", size=1)


async def test_draining_runs_the_handlers_of_the_application(queue: QueueUnderTest) -> None:
    hf, shipped, ship = shop()
    queue.adopt(hf)
    handle = await ship.enqueue(1)
    await queue.drain()
    assert shipped == [(1, False)]
    assert await queue.queries.job_status([handle.id]) == [(handle.id, Status.SUCCESSFUL)]


async def test_one_job_is_performed_while_others_wait(queue: QueueUnderTest) -> None:
    hf, shipped, ship = shop()
    queue.adopt(hf)
    await ship.enqueue(1)
    done = await queue.perform(ship, 2, express=True)
    assert done.succeeded
    assert done.result == 4
    assert shipped == [(2, True)]
    await queue.assert_enqueued(ship, count=1)
    failed = await queue.perform(ship, -1)
    assert isinstance(failed.outcome, Retried)
    assert failed.error is not None
    assert failed.error.exception_message == "no such order"


async def test_a_group_of_tasks_needs_no_application(queue: QueueUnderTest) -> None:
    tasks = TaskGroup()

    @tasks.task
    async def ship(order: int) -> None:
        raise ValueError

    with pytest.raises(InvalidInput, match="no handler is registered"):
        await queue.perform(ship, 1)
    queue.include(tasks)
    assert not (await queue.perform(ship, 1)).succeeded


async def test_time_is_moved_forward(queue: QueueUnderTest) -> None:
    runs: list[int] = []

    @queue.entrypoint("later")
    async def later(job: Job) -> None:
        runs.append(job.attempts)
        if job.attempts == 0:
            raise RetryRequested(delay=HOUR)

    await queue.queries.enqueue("later", execute_after=HOUR)
    await queue.drain()
    assert runs == []
    queue.travel(HOUR)
    await queue.drain()
    await queue.drain()
    assert runs == [0]
    queue.travel(HOUR)
    await queue.drain()
    assert runs == [0, 1]
    with pytest.raises(InvalidInput, match="forward only"):
        queue.travel(-HOUR)


async def test_schedules_follow_the_clock(queue: QueueUnderTest) -> None:
    ticks: list[object] = []

    @queue.schedule("nightly", "0 3 * * *", misfire="all")
    async def nightly(schedule: Any) -> None:
        ticks.append(schedule.slot)

    await queue.drain()
    assert ticks == []
    queue.travel(timedelta(days=2))
    await queue.drain()
    assert len(ticks) == 2


async def test_a_lease_of_a_dead_worker_expires(queue: QueueUnderTest) -> None:
    runs: list[int] = []

    @queue.entrypoint("mail")
    async def mail(job: Job) -> None:
        runs.append(job.recoveries)

    [job_id] = await queue.queries.enqueue("mail")
    job = await queue.claim("mail")
    assert job.id == job_id
    await queue.drain()
    assert runs == []
    await queue.expire_lease(job_id)
    await queue.drain()
    await queue.drain()
    assert runs == [1]
    with pytest.raises(AssertionError, match="not leased"):
        await queue.expire_lease(job_id)
    with pytest.raises(AssertionError, match="can be claimed"):
        await queue.claim("mail")


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_claimed_job_has_its_payload(queue: QueueUnderTest, size: int) -> None:
    await queue.queries.enqueue("mail", b"x" * size)
    assert (await queue.claim("mail")).payload == b"x" * size


async def test_a_transaction_keeps_a_job_or_does_not(queue: QueueUnderTest) -> None:
    hf, _, ship = shop()
    queue.adopt(hf)

    async def place(order: int) -> None:
        async with queue.transaction() as tx:
            await ship.on(tx).enqueue(order)
            await queue.refute_enqueued(ship, order=order)
            if order < 0:
                raise RuntimeError

    await place(1)
    with pytest.raises(RuntimeError):
        await place(-1)
    await queue.assert_enqueued(ship, count=1, order=1)
    await queue.refute_enqueued(ship, order=-1)


# An application does not close what is under test, and the event loops end here.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_adopted_queue_and_the_test_enter_it_in_turn(queue: QueueUnderTest) -> None:
    hf, shipped, ship = shop()
    queue.adopt(hf)

    async def application(order: int) -> int:
        async with hf:
            handle = await ship.enqueue(order)
            await hf.run(mode="drain", signals=False)
            return int(await handle.result(30))

    async def drained() -> None:
        async with queue:
            await ship.enqueue(7)
            await queue.drain()

    assert asyncio.run(application(1)) == 2
    asyncio.run(drained())
    assert asyncio.run(application(2)) == 4
    asyncio.run(drained())
    assert shipped == [(1, False), (7, False), (2, False), (7, False)]
    asyncio.run(queue.close())
    # Now, while the warnings about their connections are ignored.
    gc.collect()


async def test_an_adopted_queue_is_given_back(queue: QueueUnderTest) -> None:
    hf, _, _ = shop()
    before = hf.store
    queue.adopt(hf)
    async with hf:
        await hf.queries.enqueue("mail")
    await queue.assert_enqueued("mail")
    queue.release()
    assert hf.store is before


async def test_a_handler_is_called_with_a_made_job() -> None:
    async def mail(job: Job, ctx: Context) -> str:
        return f"{job.payload!r} {job.attempts}"

    job = make_job("mail", b"1", attempts=3)
    assert await mail(job, Context(job, {})) == "b'1' 3"
    with pytest.raises(InvalidInput, match=r"holdfast\.testing"):
        Context(job, {}).transaction()
