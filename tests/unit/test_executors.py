"""How handlers are run on the event loop and in threads, and how users run them their own way."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import InvalidInput, JobTimeout
from holdfast.executors import (
    AbstractEntrypointExecutor,
    EntrypointExecutor,
    ProcessExecutor,
    ThreadExecutor,
    build,
)
from holdfast.executors.thread import DaemonThreads
from holdfast.models import NOT_STARTED, TIMED_OUT, Context, Job
from holdfast.retry import describe
from tests.unit.running import DEADLINE, fail, make_job, parameters, run, succeed, until

if TYPE_CHECKING:
    from holdfast.task import Kind


async def test_a_handler_gets_its_job_and_when_it_asks_the_context() -> None:
    seen: list[Any] = []

    async def alone(job: Job) -> None:
        seen.append(job)

    async def together(job: Job, context: Context) -> None:
        seen.append((job, context))

    first = await run(EntrypointExecutor(parameters(alone)))
    second = await run(EntrypointExecutor(parameters(together, accepts_context=True)))
    assert seen == [first.job, (second.job, second)]


async def test_what_a_handler_raises_comes_out_unchanged() -> None:
    error = ValueError("boom")

    async def fail(job: Job) -> None:
        raise error

    with pytest.raises(ValueError, match="boom") as caught:
        await run(EntrypointExecutor(parameters(fail)))
    assert caught.value is error


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("async", EntrypointExecutor), ("thread", ThreadExecutor), ("process", ProcessExecutor)],
)
def test_the_kind_of_a_handler_decides_its_executor(kind: Kind, expected: type) -> None:
    assert type(build(parameters(fail, kind))) is expected


async def test_an_executor_of_the_users_own_runs_around_the_handler() -> None:
    order: list[str] = []

    class Loud(EntrypointExecutor):
        async def execute(self, job: Job, context: Context) -> None:
            order.append("before")
            await super().execute(job, context)
            order.append("after")

    @dataclass
    class Named(AbstractEntrypointExecutor):
        label: str = "label"

        async def execute(self, job: Job, context: Context) -> None:
            order.append(f"{self.label} {self.parameters.name}")

    async def middle(job: Job) -> None:
        order.append("handler")

    await run(build(parameters(middle), lambda params: Loud(params)))
    await run(build(parameters(middle), lambda params: Named(params, label="job of")))
    assert order == ["before", "handler", "after", "job of mail"]


async def test_an_executor_may_have_nothing_but_execute() -> None:
    class Bare:
        async def execute(self, job: Job, context: Context) -> None:
            await asyncio.sleep(60)

    bare: Any = Bare()
    limited = replace(parameters(succeed), timeout=timedelta(milliseconds=20))
    executor = build(limited, lambda _: bare)
    assert executor.capacity == 0
    with pytest.raises(JobTimeout):
        await run(executor)


def test_a_factory_that_returns_no_executor_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"executor_factory of 'mail' returned 7"):
        build(parameters(succeed), lambda params: 7)  # type: ignore[arg-type, return-value]


def test_an_executor_without_execute_cannot_be_made() -> None:
    class Forgotten(AbstractEntrypointExecutor):
        pass

    with pytest.raises(TypeError, match="execute"):
        Forgotten(parameters(succeed))  # type: ignore[abstract]


async def test_a_plain_handler_runs_in_another_thread_with_job_and_context() -> None:
    seen: list[Any] = []

    def handler(job: Job, context: Context) -> None:
        seen.extend([threading.current_thread(), job, context])

    context = await run(ThreadExecutor(parameters(handler, "thread", accepts_context=True)))
    assert seen[0] is not threading.current_thread()
    assert seen[0].daemon
    assert seen[1:] == [context.job, context]


async def test_a_thread_sees_the_context_variables_of_its_run() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("traced")
    seen: list[str] = []
    await run(ThreadExecutor(parameters(lambda job: seen.append(variable.get()), "thread")))
    assert seen == ["traced"]


class Own(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(2), Own("odd")])
async def test_what_a_thread_raises_comes_out_unchanged(error: BaseException) -> None:
    def handler(job: Job) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await run(ThreadExecutor(parameters(handler, "thread")))
    assert caught.value is error
    assert "handler" in describe(caught.value).traceback


async def test_stop_iteration_in_a_thread_ends_the_run() -> None:
    def handler(job: Job) -> None:
        next(iter(()))

    with pytest.raises(RuntimeError, match="StopIteration"):
        await run(ThreadExecutor(parameters(handler, "thread")))


async def test_a_cancelled_error_of_the_handlers_own_is_not_taken_for_a_cancellation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def handler(job: Job) -> None:
        raise asyncio.CancelledError

    executor = ThreadExecutor(parameters(handler, "thread"))
    context = Context(make_job(), {})
    with pytest.raises(asyncio.CancelledError):
        await executor.execute(context.job, context)
    assert not context.cancellation.cancel_called
    assert not caplog.records


async def test_a_coroutine_that_is_never_awaited_is_a_failure() -> None:
    with pytest.raises(InvalidInput, match="returned a coroutine"):
        await run(ThreadExecutor(parameters(lambda job: succeed(job), "thread")))


@pytest.mark.parametrize(
    ("max_workers", "concurrency_limit", "expected"), [(3, 0, 3), (None, 2, 2), (None, 0, 32)]
)
async def test_threads_are_bounded(
    max_workers: int | None, concurrency_limit: int, expected: int
) -> None:
    free = threading.Event()
    gauge: list[int] = []
    peak: list[int] = []

    def handler(job: Job) -> None:
        gauge.append(1)
        peak.append(len(gauge))
        free.wait(DEADLINE)
        gauge.pop()

    settings = parameters(handler, "thread", concurrency_limit=concurrency_limit)
    executor = ThreadExecutor(settings, max_workers=max_workers)
    assert executor.capacity == expected
    async with asyncio.TaskGroup() as group:
        for _ in range(expected + 5):
            group.create_task(run(executor))
        await until(lambda: len(gauge) == expected)
        free.set()
    assert max(peak) == expected
    assert len(peak) == expected + 5


@pytest.mark.parametrize("executor", [ThreadExecutor, ProcessExecutor])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_a_pool_without_workers_is_refused(executor: Any, value: Any) -> None:
    with pytest.raises(InvalidInput, match="max_workers must be an integer"):
        executor(parameters(fail), max_workers=value)


async def test_a_cancelled_thread_is_told_reported_and_not_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    started, released, ended = threading.Event(), threading.Event(), threading.Event()
    seen: list[bool] = []

    def handler(job: Job, context: Context) -> None:
        started.set()
        released.wait(DEADLINE)
        seen.append(context.cancellation.cancel_called)
        ended.set()

    executor = ThreadExecutor(parameters(handler, "thread", accepts_context=True))
    context = Context(make_job(), {})
    task = asyncio.create_task(executor.execute(context.job, context))
    await until(started.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not ended.is_set()
    assert context.cancellation.reason == TIMED_OUT
    assert context.cancellation.runs_on is not None
    assert not context.cancellation.runs_on.done()
    assert "'mail' of job 42 was cancelled but its thread is still running" in caplog.text
    released.set()
    await until(ended.is_set)
    assert seen == [True]
    await until(context.cancellation.runs_on.done)


async def test_the_reason_a_worker_gave_is_kept() -> None:
    started, released = threading.Event(), threading.Event()

    def handler(job: Job) -> None:
        started.set()
        released.wait(DEADLINE)

    context = Context(make_job(), {})
    task = asyncio.create_task(
        ThreadExecutor(parameters(handler, "thread")).execute(context.job, context)
    )
    await until(started.is_set)
    context.cancellation.cancel("lease lost")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    released.set()
    assert context.lease_lost


async def test_a_job_cancelled_before_a_thread_was_free_never_starts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    free = threading.Event()
    ran: list[bytes | None] = []

    def handler(job: Job) -> None:
        ran.append(job.payload)
        free.wait(DEADLINE)

    executor = ThreadExecutor(parameters(handler, "thread"), max_workers=1)
    first = asyncio.create_task(run(executor, make_job(b"first")))
    await until(lambda: ran)
    second = asyncio.create_task(run(executor, make_job(b"second")))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert not caplog.records
    free.set()
    await first
    await run(executor, make_job(b"third"))
    assert ran == [b"first", b"third"]


@pytest.mark.parametrize("kind", [ThreadExecutor, ProcessExecutor])
async def test_a_job_whose_time_is_up_before_a_thread_was_free_says_that_it_never_started(
    kind: type[ThreadExecutor | ProcessExecutor],
) -> None:
    busy, free = threading.Event(), threading.Event()

    def hold() -> None:
        busy.set()
        free.wait(DEADLINE)

    executor = kind(parameters(fail), max_workers=1)
    executor._threads.submit(hold)
    await until(busy.is_set)
    context = Context(make_job(), {})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await executor.execute(context.job, context)
    free.set()
    assert (context.cancellation.reason, context.cancellation.runs_on) == (NOT_STARTED, None)


async def test_idle_threads_end_and_new_ones_start() -> None:
    threads = DaemonThreads(2, "idle", idle_seconds=0.01)
    used: list[threading.Thread] = []
    for count in (1, 2):
        threads.submit(lambda: used.append(threading.current_thread()))
        await until(lambda count=count: len(used) == count)  # type: ignore[misc]
        await until(lambda: not used[-1].is_alive())
    assert used[0] is not used[1]


def test_a_thread_that_never_returns_does_not_keep_the_interpreter_from_ending() -> None:
    script = """
        import asyncio, threading
        from holdfast.executors import EntrypointExecutorParameters, ThreadExecutor
        from holdfast.models import Context

        started = threading.Event()

        def handler(job):
            started.set()
            threading.Event().wait()

        async def main():
            executor = ThreadExecutor(EntrypointExecutorParameters(handler, False, kind="thread"))
            task = asyncio.create_task(executor.execute(object(), Context(None, {})))
            while not started.is_set():
                await asyncio.sleep(0.01)

        class Job:
            id = 1

        object = Job
        asyncio.run(main())
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        timeout=DEADLINE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "still running" in ended.stderr
