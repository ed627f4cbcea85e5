"""What a task returned, and how its job ended, reach whoever waits."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from holdfast import (
    ConnectionFailed,
    Context,
    DatabaseError,
    Holdfast,
    InvalidInput,
    InvalidTask,
    JobCanceled,
    JobDeleted,
    JobFailed,
    JobHeld,
    ResultMissing,
    Status,
)
from holdfast.client import execute

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from holdfast.models import JobId, StoredResult
    from tests.servers import Database

PATIENCE = 60.0
"""Seconds within which a test's condition must hold on the slowest machine."""


@dataclass
class Receipt:
    number: int
    lines: list[str]


@asynccontextmanager
async def working(hf: Holdfast) -> AsyncIterator[None]:
    """A worker beside the test, in the same event loop."""
    worker = asyncio.create_task(hf.run(signals=False, dequeue_timeout=timedelta(milliseconds=50)))
    try:
        yield
    finally:
        hf.shutdown.set()
        await worker


async def test_a_result_comes_back_as_the_type_that_was_returned(hf: Holdfast) -> None:
    @hf.task(store_result=True)
    async def pay(amount: int) -> Receipt:
        return Receipt(amount, ["a"])

    handle = await pay.enqueue(3)
    async with working(hf):
        assert await handle.result(PATIENCE) == Receipt(3, ["a"])
        assert await handle.status() is Status.SUCCESSFUL
        again = hf.handle(handle.id, pay)
        assert (await again.result(timedelta(seconds=PATIENCE))).number == 3


async def test_many_waiters_are_each_given_their_own_result(hf: Holdfast) -> None:
    @hf.task(store_result=timedelta(hours=1))
    async def double(number: int) -> int:
        return 2 * number

    handles = await double.enqueue_many([(number,) for number in range(50)])
    async with working(hf):
        results = await asyncio.gather(*(handle.result(PATIENCE) for handle in handles))
        assert results == [2 * number for number in range(50)]
        assert await hf.wait_for(handles, PATIENCE) == [Status.SUCCESSFUL] * 50
        seen = [handle.id async for handle in hf.as_completed(handles, PATIENCE)]
    assert sorted(seen) == [handle.id for handle in handles]


async def test_results_that_are_asked_for_at_once_are_read_together(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @hf.task(store_result=True)
    async def double(number: int) -> int:
        return 2 * number

    handles = await double.enqueue_many([(number,) for number in range(250)])
    await hf.run(mode="drain", signals=False)
    read, asked = hf.store.results.get, []

    async def counted(ids: Sequence[JobId]) -> dict[JobId, StoredResult]:
        asked.append(len(ids))
        return await read(ids)

    monkeypatch.setattr(hf.store.results, "get", counted)
    handles += handles[:1]
    results = await asyncio.gather(*(handle.result(PATIENCE) for handle in handles))
    assert results == [*(2 * number for number in range(250)), 0]
    assert sum(asked) == 250
    assert len(asked) < 10


async def test_a_waiter_that_is_cancelled_keeps_no_other_from_its_result(hf: Holdfast) -> None:
    @hf.task(store_result=True)
    async def double(number: int) -> int:
        return 2 * number

    handle = await double.enqueue(4)
    waiters = [asyncio.create_task(handle.result(PATIENCE)) for _ in range(4)]
    await asyncio.sleep(0)
    for waiter in waiters[:3]:
        waiter.cancel()
    async with working(hf):
        assert await waiters[3] == 8
    assert all(waiter.cancelled() for waiter in waiters[:3])


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_waiting_in_a_queue_that_was_left_ends_with_an_error(
    pg18: Database, driver: Any
) -> None:
    hf = Holdfast.connect(pg18.dsn, driver=driver)

    @hf.task(name="double", store_result=True)
    async def double(number: int) -> int:
        return 2 * number

    async with hf:
        await hf.install()
        handle = await double.enqueue(4)
        waiter = asyncio.create_task(handle.result())
        assert await handle.status() is Status.QUEUED
    with pytest.raises(ConnectionFailed, match=f"was left while job {handle.id} was waited for"):
        await waiter
    # One after the other: the next wait begins while the connection of the last is closed.
    for wait in (handle.wait, handle.result, handle.wait):
        with pytest.raises(ConnectionFailed, match="enter the queue again"):
            await wait(PATIENCE)
    async with hf:
        await hf.run(mode="drain", signals=False)
        assert await handle.result(PATIENCE) == 8


async def test_waiting_where_there_are_no_tables_ends_with_an_error(pg18: Database) -> None:
    async with Holdfast.connect(pg18.dsn) as hf:

        @hf.task(name="double", store_result=True)
        async def double(number: int) -> int:
            return 2 * number

        for call in (double.enqueue(4), hf.handle(1, double).result(PATIENCE)):
            with pytest.raises(DatabaseError, match=r"\"holdfast\" does not exist.*install"):
                await call


async def test_a_result_outlives_the_log_of_its_job(pg18: Database) -> None:
    async with Holdfast.connect(pg18.dsn) as hf:
        await hf.install()

        @hf.task(name="double", store_result=timedelta(days=60))
        async def double(number: int) -> int:
            return 2 * number

        handle = await double.enqueue(4)
        await hf.run(mode="drain", signals=False)
        async with await psycopg.AsyncConnection.connect(pg18.dsn) as connection:
            await connection.execute("delete from holdfast_log")
        assert await handle.status() is None
        assert await handle.result(PATIENCE) == 8


async def test_each_way_to_end_without_success_has_an_error_of_its_own(hf: Holdfast) -> None:
    @hf.task(store_result=True, retry=None)
    async def breaks() -> int:
        raise LookupError("no such order")

    @hf.task(store_result=True, retry=None, on_failure="delete")
    async def fails() -> int:
        raise LookupError("no such order")

    @hf.task(store_result=True)
    async def later() -> int:
        return 1

    held, failed = await breaks.enqueue(), await fails.enqueue()
    async with working(hf):
        with pytest.raises(JobHeld, match="LookupError: no such order") as caught:
            await held.result(PATIENCE)
        with pytest.raises(JobFailed) as failure:
            await failed.result(PATIENCE)
    for error in (caught.value, failure.value):
        assert error.record is not None
        assert error.record.exception_type == "LookupError"
        assert "no such order" in error.record.traceback
    canceled, deleted = await later.enqueue_many([(), ()])
    assert await canceled.cancel()
    await hf.queries.delete_jobs([deleted.id])
    with pytest.raises(JobCanceled):
        await canceled.result(PATIENCE)
    with pytest.raises(JobDeleted):
        await deleted.result(PATIENCE)
    assert not await canceled.cancel()


async def test_an_unknown_job_has_an_answer_and_no_result(hf: Holdfast) -> None:
    @hf.task(store_result=True)
    async def task() -> int:
        return 1

    handle = hf.handle(2**40, task)
    assert await handle.status() is None
    assert await handle.wait(PATIENCE) is None
    assert await handle.progress() is None
    assert await handle.error() is None
    with pytest.raises(ResultMissing, match="unknown"):
        await handle.result(PATIENCE)
    with pytest.raises(InvalidInput):
        hf.handle(0, task)
    with pytest.raises(InvalidInput, match="the task of the job"):
        hf.handle(1, task.func)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="seconds, got 'soon'"):
        await handle.wait("soon")  # type: ignore[arg-type]


async def test_a_task_without_results_says_how_to_get_them(hf: Holdfast) -> None:
    @hf.task(name="plain")
    async def plain() -> int:
        return 1

    handle = await plain.enqueue()
    with pytest.raises(ResultMissing, match="store_result=True"):
        await handle.result(PATIENCE)
    async with working(hf):
        assert await handle.wait(PATIENCE) is Status.SUCCESSFUL
    assert await hf.queries.find_results([handle.id]) == {}


async def test_a_result_that_cannot_be_stored_fails_the_result_and_not_the_job(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "MOST_RESULT_BYTES", 100)

    @hf.task(store_result=True)
    async def large() -> str:
        return "x" * 101

    @hf.task(store_result=True)
    async def wrong() -> Any:
        return object()

    @hf.task(store_result=True)
    async def misfit() -> int:
        return "seven"  # type: ignore[return-value]

    @hf.task(store_result=True)
    async def endless() -> float:
        return math.inf

    tasks = (large, wrong, misfit, endless)
    handles: list[Any] = [await task.enqueue() for task in tasks]
    async with working(hf):
        for handle, words in zip(
            handles,
            ("has 103 bytes, more than the 100 allowed", "cannot be", "valid integer", "infinity"),
            strict=True,
        ):
            with pytest.raises(ResultMissing, match=words):
                await handle.result(PATIENCE)
            assert await handle.status() is Status.SUCCESSFUL


async def test_a_wait_ends_with_its_timeout(hf: Holdfast) -> None:
    @hf.task(store_result=True)
    async def never() -> int:
        return 1

    handle = await never.enqueue()
    for wait in (
        handle.result(0.01),
        handle.wait(0.01),
        hf.wait_for([handle], 0.01),
        anext(hf.as_completed([handle], 0.01)),
    ):
        with pytest.raises(TimeoutError, match=r"not ended within 0\.01 s"):
            await wait
    with pytest.raises(InvalidInput, match="handles"):
        await hf.wait_for([handle.id])  # type: ignore[list-item]


async def test_progress_is_read_while_the_job_runs(hf: Holdfast) -> None:
    said, go = asyncio.Event(), asyncio.Event()

    @hf.task
    async def paged(context: Context) -> None:
        for page in range(1000):
            await context.progress(page / 2000, f"page {page}")
        await context.progress(0.5, "page 3 of 6")
        said.set()
        await go.wait()

    handle = await paged.enqueue()
    async with working(hf), asyncio.timeout(PATIENCE):
        await said.wait()
        found = await handle.progress()
        while found is None or found.fraction != 0.5:
            await asyncio.sleep(0.01)
            found = await handle.progress()
        assert found.message == "page 3 of 6"
        [(job_id, listed)] = await hf.queries.list_progress()
        assert (job_id, listed.fraction) == (handle.id, 0.5)
        go.set()
        await handle.wait()
    assert await hf.queries.list_progress() == []


async def test_progress_of_a_plain_function_needs_no_await(hf: Holdfast) -> None:
    stopped = threading.Event()

    @hf.task(retry=None)
    def paged(context: Context) -> None:
        context.progress(0.25, "quarter")
        with pytest.raises(InvalidInput, match="0 to 1"):
            context.progress(1.5)
        with pytest.raises(InvalidInput, match="must be a str"):
            context.progress(0.5, 7)  # type: ignore[arg-type]
        while not context.cancellation.cancel_called:
            time.sleep(0.01)
        stopped.set()

    handle = await paged.enqueue()
    async with working(hf), asyncio.timeout(PATIENCE):
        found = await handle.progress()
        while found is None:
            await asyncio.sleep(0.01)
            found = await handle.progress()
        assert (found.fraction, found.message) == (0.25, "quarter")
        await handle.cancel()
        assert await asyncio.to_thread(stopped.wait, PATIENCE)


@pytest.mark.parametrize("keep", [0, "1 day", timedelta(0), timedelta(days=10_000)])
def test_a_time_that_no_result_can_be_kept_for_is_refused(keep: Any) -> None:
    hf = Holdfast.in_memory()
    with pytest.raises(InvalidTask, match="store_result"):
        hf.task(store_result=keep)(lambda: None)
