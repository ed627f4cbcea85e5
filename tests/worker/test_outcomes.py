"""What becomes of a job when its handler returns, asks for another run, or raises."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from holdfast import (
    Context,
    DatabaseRetryEntrypointExecutor,
    Holdfast,
    Job,
    RetryRequested,
    Status,
)
from tests.worker import workers
from tests.worker.workers import Watch, ending, the_log, the_row, working

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NOW = timedelta(0)


async def test_a_job_is_run_with_its_payload_and_leaves_the_queue(hf: Holdfast) -> None:
    ran: list[Job] = []

    @hf.entrypoint("greet")
    async def greet(job: Job) -> None:
        ran.append(job)

    watch = Watch(hf)
    async with working(hf):
        [job_id] = await hf.queries.enqueue("greet", b"hello", headers={"from": "me"})
        await watch.until_settled()

    assert [(job.id, job.payload, job.headers) for job in ran] == [
        (job_id, b"hello", {"from": "me"})
    ]
    entry = await ending(hf, job_id)
    assert (entry.status, entry.claimed_by) == (Status.SUCCESSFUL, hf.queue_manager.id)
    assert await hf.queries.get_jobs([job_id]) == []


async def test_a_retry_is_logged_with_what_was_asked_for(hf: Holdfast) -> None:
    @hf.entrypoint("call_api")
    async def call_api(job: Job) -> None:
        raise RetryRequested(delay=timedelta(seconds=30), reason="rate limited")

    watch = Watch(hf)
    async with working(hf):
        [job_id] = await hf.queries.enqueue("call_api")
        await watch.until_settled()

    entry = await ending(hf, job_id)
    assert entry.status == Status.QUEUED
    assert entry.traceback is not None
    assert entry.traceback["exception_type"] == "RetryRequested"
    assert entry.traceback["additional_context"] == {
        "entrypoint": "call_api",
        "attempt": 0,
        "retry_delay": "0:00:30",
        "reason": "rate limited",
    }
    job = await the_row(hf, job_id)
    assert (job.status, job.attempts, job.recoveries) == (Status.QUEUED, 1, 0)
    assert job.execute_after - entry.created == timedelta(seconds=30)
    assert (job.claim_token, job.claimed_by, job.last_error) == (None, None, "rate limited")


async def test_a_retried_job_runs_again_after_its_delay_and_not_before(hf: Holdfast) -> None:
    attempts: list[int] = []
    delay = timedelta(milliseconds=300)

    @hf.entrypoint("flaky")
    async def flaky(job: Job) -> None:
        attempts.append(job.attempts)
        if job.attempts < 2:
            raise RetryRequested(delay=delay)

    watch = Watch(hf)
    async with working(hf, dequeue_timeout=timedelta(hours=1)):
        [job_id] = await hf.queries.enqueue("flaky")
        await watch.until_settled(3)

    assert attempts == [0, 1, 2]
    first, second, third = await the_log(hf, job_id)
    assert [entry.status for entry in (first, second, third)] == ["queued", "queued", "successful"]
    assert second.claimed_at is not None
    assert third.claimed_at is not None
    assert second.claimed_at >= first.created + delay
    assert third.claimed_at >= second.created + delay


@pytest.mark.parametrize("delay", [NOW, timedelta(microseconds=900)])
async def test_jobs_that_ask_for_another_run_at_once_get_it(hf: Holdfast, delay: timedelta) -> None:
    """Two of them: the second finds the wake-up of the first."""
    ran: list[int] = []

    @hf.entrypoint("again")
    async def again(job: Job) -> None:
        ran.append(job.attempts)
        if job.attempts < 2:
            raise RetryRequested(delay)

    watch = Watch(hf)
    ids = await hf.queries.enqueue(["again"] * 2)
    async with working(hf, dequeue_timeout=timedelta(hours=1)):
        await watch.until_settled(6)

    assert sorted(ran) == [0, 0, 1, 1, 2, 2]
    for job_id in ids:
        assert [entry.status for entry in await the_log(hf, job_id)][-1] == Status.SUCCESSFUL


@pytest.mark.parametrize(("on_failure", "last"), [("delete", "exception"), ("hold", "failed")])
async def test_retries_that_are_used_up_end_in_the_exception_itself(
    hf: Holdfast, on_failure: str, last: str
) -> None:
    def retrying(parameters: object) -> DatabaseRetryEntrypointExecutor:
        return DatabaseRetryEntrypointExecutor(
            parameters,  # type: ignore[arg-type]
            max_attempts=2,
            initial_delay=timedelta(milliseconds=1),
        )

    @hf.entrypoint("flaky", executor_factory=retrying, on_failure=on_failure)  # type: ignore[arg-type]
    async def flaky(job: Job) -> None:
        raise ZeroDivisionError("again")

    watch = Watch(hf)
    async with working(hf):
        [job_id] = await hf.queries.enqueue("flaky")
        await watch.until_settled(3)

    log = await the_log(hf, job_id)
    assert [entry.status for entry in log] == ["queued", "queued", last]
    assert [entry.attempt for entry in log] == [0, 1, 2]
    assert all(
        entry.traceback and entry.traceback["exception_type"] == "ZeroDivisionError"
        for entry in log
    )
    assert len(await hf.queries.list_failed_jobs()) == (1 if last == "failed" else 0)


async def test_a_job_that_always_asks_for_another_run_is_held_at_the_cap(hf: Holdfast) -> None:
    @hf.entrypoint("endless", max_attempts=3)
    async def endless(job: Job) -> None:
        raise RetryRequested

    watch = Watch(hf)
    async with working(hf):
        [job_id] = await hf.queries.enqueue("endless")
        await watch.until_settled(3)

    log = await the_log(hf, job_id)
    assert [entry.status for entry in log] == ["queued", "queued", "failed"]
    assert log[-1].reason in ("max_attempts", "retry requested")
    assert (await the_row(hf, job_id)).status == Status.FAILED


async def test_a_held_job_runs_again_when_it_is_requeued(hf: Holdfast) -> None:
    broken = True

    @hf.entrypoint("import", on_failure="hold")
    async def load(job: Job) -> None:
        if broken:
            raise ValueError("bad file")

    watch = Watch(hf)
    async with working(hf):
        [job_id] = await hf.queries.enqueue("import")
        await watch.until_settled()
        [held] = await hf.queries.list_failed_jobs()
        assert (held.id, held.last_error) == (job_id, "ValueError: bad file")
        broken = False
        await hf.queries.requeue_jobs([job_id])
        await watch.until_settled(2)

    assert [entry.status for entry in await the_log(hf, job_id)] == [
        "failed",
        "queued",
        "successful",
    ]


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()]
)
async def test_a_handler_that_tries_to_end_the_process_fails_alone(
    hf: Holdfast, error: BaseException
) -> None:
    @hf.entrypoint("leave")
    async def leave(job: Job) -> None:
        raise error

    @hf.entrypoint("stay")
    async def stay(job: Job) -> None:
        await asyncio.sleep(0)

    watch = Watch(hf)
    async with working(hf):
        [bad] = await hf.queries.enqueue("leave")
        await watch.until_settled()
        [good] = await hf.queries.enqueue("stay")
        await watch.until_settled(2)

    entry = await ending(hf, bad)
    assert entry.status == Status.EXCEPTION
    assert entry.traceback is not None
    assert entry.traceback["exception_type"] == type(error).__name__
    assert (await ending(hf, good)).status == Status.SUCCESSFUL


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("make", "stored"),
    [
        (lambda: ValueError("nul \0 byte"), "nul ␀ byte"),
        (lambda: ValueError("lone \ud800 half"), "lone � half"),
        (lambda: ValueError("x" * 5_000_000), "characters cut"),
        (Unprintable, "<unprintable Unprintable>"),
    ],
    ids=["nul", "surrogate", "five megabytes", "raising str"],
)
@pytest.mark.parametrize("on_failure", ["delete", "hold"])
async def test_any_message_is_recorded_and_the_job_reaches_its_next_state(
    hf: Holdfast, make: Callable[[], Exception], stored: str, on_failure: str
) -> None:
    @hf.entrypoint("odd", on_failure=on_failure)  # type: ignore[arg-type]
    async def odd(job: Job) -> None:
        raise make()

    watch = Watch(hf)
    async with working(hf):
        [job_id] = await hf.queries.enqueue("odd")
        await watch.until_settled()

    entry = await ending(hf, job_id)
    assert entry.status == (Status.FAILED if on_failure == "hold" else Status.EXCEPTION)
    assert entry.traceback is not None
    assert stored in entry.traceback["exception_message"]
    assert len(entry.traceback["exception_message"]) <= 2_000
    assert len(entry.traceback["traceback"]) <= 32_000


class Unreadable(RetryRequested):
    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(f"no {name}")


def nested(levels: int) -> Exception:
    error: Exception = ValueError("at the bottom")
    for _ in range(levels):
        error = ExceptionGroup("group", [error])
    return error


@pytest.mark.parametrize(
    ("make", "stored"),
    [(Unreadable, "no delay"), (lambda: nested(5_000), "recursion")],
    ids=["raising attributes", "groups in groups"],
)
async def test_an_exception_that_cannot_be_read_ends_its_job(
    hf: Holdfast, make: Callable[[], Exception], stored: str
) -> None:
    @hf.entrypoint("odd")
    async def odd(job: Job) -> None:
        raise make()

    watch = Watch(hf)
    async with working(hf):
        [job_id] = await hf.queries.enqueue("odd")
        await watch.until_settled()

    entry = await ending(hf, job_id)
    assert entry.status == Status.EXCEPTION
    assert entry.traceback is not None
    assert "cannot be read" in entry.traceback["exception_message"]
    assert stored in entry.traceback["exception_message"]


async def test_a_retry_for_an_unprintable_reason_is_still_a_retry(hf: Holdfast) -> None:
    @hf.entrypoint("odd")
    async def odd(job: Job) -> None:
        raise RetryRequested(timedelta(hours=1), reason="\0\udfff" + "y" * 5_000_000)

    watch = Watch(hf)
    async with working(hf):
        [job_id] = await hf.queries.enqueue("odd")
        await watch.until_settled()

    job = await the_row(hf, job_id)
    assert (job.status, job.attempts) == (Status.QUEUED, 1)
    assert job.last_error is not None
    assert "characters cut" in job.last_error


async def return_early() -> None: ...


async def raise_another() -> None:
    raise LookupError("on the way out")


async def ask_for_a_retry() -> None:
    raise RetryRequested


async def go_on_for_a_while() -> None:
    await asyncio.sleep(0.2)


@pytest.mark.parametrize(
    "afterwards", [return_early, raise_another, ask_for_a_retry, go_on_for_a_while]
)
async def test_a_timeout_that_the_handler_swallows_is_still_a_timeout(
    hf: Holdfast, afterwards: Callable[[], Awaitable[None]]
) -> None:
    @hf.entrypoint("stubborn", timeout=timedelta(milliseconds=50))
    async def stubborn(job: Job) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await afterwards()

    watch = Watch(hf)
    async with working(hf):
        [job_id] = await hf.queries.enqueue("stubborn")
        await watch.until_settled()

    entry = await ending(hf, job_id)
    assert entry.status == Status.EXCEPTION
    assert entry.traceback is not None
    assert entry.traceback["exception_type"] == "JobTimeout"


async def test_a_handler_that_outlasts_its_timeout_is_stopped_and_failed(hf: Holdfast) -> None:
    stopped = asyncio.Event()

    @hf.entrypoint("slow", timeout=timedelta(milliseconds=50))
    async def slow(job: Job) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    watch = Watch(hf)
    async with working(hf):
        [job_id] = await hf.queries.enqueue("slow")
        await watch.until_settled()

    entry = await ending(hf, job_id)
    assert stopped.is_set()
    assert entry.status == Status.EXCEPTION
    assert entry.traceback is not None
    assert entry.traceback["exception_type"] == "JobTimeout"
    assert "0:00:00.050000" in entry.traceback["exception_message"]


async def test_a_thread_handler_runs_beside_the_event_loop_with_its_context(hf: Holdfast) -> None:
    hf.resources["answer"] = 42
    seen: list[tuple[bool, int]] = []

    @hf.entrypoint("block", executor="thread")
    def block(job: Job, context: Context) -> None:
        outside = threading.current_thread() is not threading.main_thread()
        seen.append((outside, context.resources["answer"]))

    @hf.entrypoint("exit", executor="thread")
    def leave(job: Job) -> None:
        raise SystemExit(1)

    watch = Watch(hf)
    async with working(hf):
        good, bad = await hf.queries.enqueue(["block", "exit"])
        await watch.until_settled(2)

    assert seen == [(True, 42)]
    assert (await ending(hf, good)).status == Status.SUCCESSFUL
    assert (await ending(hf, bad)).status == Status.EXCEPTION


async def test_a_process_handler_runs_elsewhere_and_may_die_there(hf: Holdfast) -> None:
    hf.entrypoint("which", executor="process")(workers.say_which_process)
    hf.entrypoint("leave", executor="process")(workers.leave_the_process)
    watch = Watch(hf)
    async with working(hf):
        which, leave = await hf.queries.enqueue(["which", "leave"])
        await watch.until_settled(2)

    told = (await ending(hf, which)).traceback
    assert told is not None
    assert told["exception_message"].startswith("ran in ")
    assert told["exception_message"] != f"ran in {os.getpid()}"
    died = (await ending(hf, leave)).traceback
    assert died is not None
    assert (died["exception_type"], "exit code 7" in died["exception_message"]) == (
        "HandlerExit",
        True,
    )


async def test_a_handler_finds_its_job_and_the_resources_in_its_context(hf: Holdfast) -> None:
    hf.resources["pool"] = pool = object()
    seen: list[Context] = []

    @hf.entrypoint("look")
    async def look(job: Job, context: Context) -> None:
        assert context.job is job
        seen.append(context)

    watch = Watch(hf)
    async with working(hf):
        await hf.queries.enqueue("look")
        await watch.until_settled()

    [context] = seen
    assert context.resources["pool"] is pool
    assert (context.cancellation.cancel_called, context.lease_lost) == (False, False)
