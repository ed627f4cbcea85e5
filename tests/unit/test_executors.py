"""How handlers are run: on the loop, in threads, in processes, and again after a failure."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HandlerExit, InvalidInput, RetryRequested
from holdfast.executors import (
    AbstractEntrypointExecutor,
    DatabaseRetryEntrypointExecutor,
    EntrypointExecutor,
    EntrypointExecutorParameters,
    ProcessExecutor,
    RemoteError,
    ThreadExecutor,
    build,
)
from holdfast.executors.thread import DaemonThreads
from holdfast.lifecycle import Status
from holdfast.models import Context, Job, JobId
from holdfast.retry import describe

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.task import Kind

NOW = datetime(2030, 1, 1, tzinfo=UTC)
DEADLINE = 30.0


def make_job(payload: bytes | None = None, attempts: int = 0) -> Job:
    return Job(
        id=JobId(42),
        entrypoint="mail",
        payload=payload,
        priority=0,
        status=Status.PICKED,
        execute_after=NOW,
        attempts=attempts,
        recoveries=0,
        max_attempts=None,
        max_recoveries=None,
        dedupe_key=None,
        headers=None,
        created=NOW,
        updated=NOW,
        heartbeat=NOW,
        claim_token=None,
        claimed_by=None,
        claimed_at=NOW,
        lease=timedelta(seconds=30),
        last_error=None,
        last_error_at=None,
        held_at=None,
    )


def parameters(
    func: Callable[..., Any],
    kind: Kind = "async",
    *,
    accepts_context: bool = False,
    concurrency_limit: int = 0,
) -> EntrypointExecutorParameters:
    return EntrypointExecutorParameters(
        func, accepts_context, concurrency_limit, name="mail", kind=kind
    )


async def run(executor: Any, job: Job | None = None) -> Context:
    job = job or make_job()
    context = Context(job, {})
    async with asyncio.timeout(DEADLINE):
        await executor.execute(job, context)
    return context


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE):
        # Threads, files and other processes have no event to await.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def succeed(job: Job) -> None:
    pass


# ---- on the event loop


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
    assert type(build(parameters(hello, kind))) is expected


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


def test_a_factory_that_returns_no_executor_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"executor_factory of 'mail' returned 7"):
        build(parameters(succeed), lambda params: 7)  # type: ignore[arg-type, return-value]


def test_an_executor_without_execute_cannot_be_made() -> None:
    class Forgotten(AbstractEntrypointExecutor):
        pass

    with pytest.raises(TypeError, match="execute"):
        Forgotten(parameters(succeed))  # type: ignore[abstract]


# ---- in threads


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


async def test_a_coroutine_that_nobody_would_await_is_a_failure() -> None:
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
    with pytest.raises(InvalidInput, match="max_workers must be a whole number"):
        executor(parameters(hello), max_workers=value)


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
    assert context.cancellation.cancel_called
    assert "'mail' of job 42 was cancelled but its thread is still running" in caplog.text
    released.set()
    await until(ended.is_set)
    assert seen == [True]


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


# ---- in processes: the handlers are found by name, so they are up here and not in the tests


def hello(job: Job) -> None:
    assert job.payload is not None
    Path(os.fsdecode(job.payload)).write_text(f"{os.getpid()} {job.id}")


def hang(job: Job) -> None:
    """Write who runs, and start a process that would outlive the handler."""
    grandchild = subprocess.Popen(["sleep", "600"])
    path = Path(os.fsdecode(job.payload or b""))
    path.with_suffix(".new").write_text(f"{os.getpid()} {grandchild.pid}")
    path.with_suffix(".new").rename(path)
    time.sleep(600)


def wait_for_go(job: Job) -> None:
    path = Path(os.fsdecode(job.payload or b""))
    path.write_text(str(os.getpid()))
    while not path.with_suffix(".go").exists():
        time.sleep(0.005)


def exit_hard(job: Job) -> None:
    os._exit(7)


def kill_self(job: Job) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fork_and_die(job: Job) -> None:
    """The forked process keeps the child's end of the pipe open."""
    if (forked := os.fork()) == 0:
        time.sleep(600)
        os._exit(0)
    if job.payload:
        Path(os.fsdecode(job.payload)).write_text(str(forked))
    os._exit(5)


def exit_softly(job: Job) -> None:
    sys.exit(3)


class Unpicklable(Exception):
    def __init__(self, one: object, two: object) -> None:
        self.lock = threading.Lock()
        super().__init__(f"{one} and {two}")


def fail_unpicklably(job: Job) -> None:
    try:
        raise KeyError("early")
    except KeyError as error:
        raise Unpicklable("this", "that") from error


def ask_for_retry(job: Job) -> None:
    raise RetryRequested(timedelta(seconds=30), "rate limited")


def ask_for_retry_after_failure(job: Job) -> None:
    raise RetryRequested(timedelta(seconds=30), "again") from OSError("refused")


def return_coroutine(job: Job) -> Any:
    return succeed(job)


def fail(job: Job) -> None:
    raise ValueError("boom")


def process(func: Callable[..., Any], **options: Any) -> ProcessExecutor:
    return ProcessExecutor(parameters(func, "process"), **options)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def payload_of(path: Path) -> Job:
    return make_job(os.fsencode(path))


async def test_a_handler_runs_in_another_process_with_its_job(tmp_path: Path) -> None:
    path = tmp_path / "seen"
    await run(process(hello), payload_of(path))
    pid, job_id = path.read_text().split()
    assert int(pid) != os.getpid()
    assert job_id == "42"


async def test_a_child_is_kept_for_the_next_job_and_let_go_when_idle(tmp_path: Path) -> None:
    executor = process(hello, max_workers=1, idle_seconds=1.0)
    paths = [tmp_path / "first", tmp_path / "second"]
    for path in paths:
        await run(executor, payload_of(path))
    first, second = (int(path.read_text().split()[0]) for path in paths)
    assert first == second
    await until(lambda: is_gone(first))
    await run(executor, payload_of(tmp_path / "third"))
    assert int((tmp_path / "third").read_text().split()[0]) != first


async def test_a_child_that_was_killed_while_idle_costs_no_job(tmp_path: Path) -> None:
    executor = process(hello, max_workers=1)
    await run(executor, payload_of(tmp_path / "first"))
    pid = int((tmp_path / "first").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    await until(lambda: is_gone(pid))
    await run(executor, payload_of(tmp_path / "second"))
    assert int((tmp_path / "second").read_text().split()[0]) != pid


async def test_a_payload_larger_than_a_pipe_arrives() -> None:
    with pytest.raises(RemoteError, match="ValueError: boom"):
        await run(process(fail), make_job(b"x" * 3_000_000))


@pytest.mark.parametrize(
    ("func", "code"),
    [(exit_hard, "7"), (kill_self, r"-9 \(SIGKILL\)"), (fork_and_die, "5")],
)
async def test_a_child_that_dies_is_a_failure_and_the_next_job_gets_another(
    func: Callable[[Job], None], code: str
) -> None:
    executor = process(func, max_workers=1)
    for _ in range(2):
        with pytest.raises(HandlerExit, match=f"'mail' of job 42 died with exit code {code};"):
            await run(executor)


async def test_what_a_dead_child_started_ends_with_it(tmp_path: Path) -> None:
    with pytest.raises(HandlerExit):
        await run(process(fork_and_die), payload_of(tmp_path / "forked"))
    await until(lambda: is_gone(int((tmp_path / "forked").read_text())))


async def test_an_exception_comes_back_as_text_even_if_it_cannot_be_pickled() -> None:
    with pytest.raises(RemoteError) as caught:
        await run(process(fail_unpicklably))
    record = describe(caught.value)
    assert record.exception_type == "Unpicklable"
    assert record.exception_message == "this and that"
    assert "in fail_unpicklably" in record.traceback
    assert "KeyError: 'early'" in record.traceback
    assert str(caught.value) == "Unpicklable: this and that"


async def test_a_handler_that_asks_its_process_to_exit_is_a_failure_of_that_type() -> None:
    with pytest.raises(RemoteError) as caught:
        await run(process(exit_softly))
    assert caught.value.exception_type == "SystemExit"


async def test_a_request_for_a_retry_comes_back_as_one() -> None:
    with pytest.raises(RetryRequested) as caught:
        await run(process(ask_for_retry))
    assert caught.value.delay == timedelta(seconds=30)
    assert caught.value.reason == "rate limited"
    record = describe(caught.value)
    assert (record.exception_type, record.exception_message) == ("RetryRequested", "rate limited")
    assert "in ask_for_retry" in record.traceback


async def test_a_request_for_a_retry_comes_back_with_its_cause() -> None:
    with pytest.raises(RetryRequested) as caught:
        await run(process(ask_for_retry_after_failure))
    assert caught.value.reason == "again"
    record = describe(caught.value)
    assert (record.exception_type, record.exception_message) == ("OSError", "refused")


async def test_a_coroutine_of_a_child_is_a_failure() -> None:
    with pytest.raises(RemoteError, match="InvalidInput: handler 'mail' returned a coroutine"):
        await run(process(return_coroutine))


async def test_cancelling_ends_the_child_and_what_it_started(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    executor = process(hang)
    task = asyncio.create_task(run(executor, payload_of(path)))
    await until(path.exists)
    child, grandchild = map(int, path.read_text().split())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_gone(child)
    await until(lambda: is_gone(grandchild))


async def test_a_timeout_ends_the_child_and_frees_its_place(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    executor = process(functools.partial(hang), max_workers=1)
    task = asyncio.create_task(run(executor, payload_of(path)))
    waiting = asyncio.create_task(run(executor, payload_of(tmp_path / "later")))
    await until(path.exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until((tmp_path / "later").exists)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_job_cancelled_while_its_child_is_born_ends_with_it(tmp_path: Path) -> None:
    executor = process(hang, max_workers=1)
    known = {child.pid for child in psutil.Process().children()}
    task = asyncio.create_task(run(executor, payload_of(tmp_path / "pids")))
    await until(lambda: {child.pid for child in psutil.Process().children()} - known)
    born = {child.pid for child in psutil.Process().children()} - known
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (tmp_path / "pids").exists()
    # multiprocessing's resource tracker may have been born with it, and stays.
    await until(lambda: sum(not is_gone(pid) for pid in born) <= 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_to_all_processes_of_a_worker_leaves_a_running_handler_alone(
    number: signal.Signals, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    task = asyncio.create_task(run(process(wait_for_go), payload_of(path)))
    await until(lambda: path.exists() and path.read_text())
    os.kill(int(path.read_text()), number)
    path.with_suffix(".go").touch()
    await task


async def script_process(script: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(script), cwd=Path(__file__).parents[2]
    )


async def test_a_child_dies_with_its_worker(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    script = f"""
        import asyncio
        from pathlib import Path
        from tests.unit.test_executors import hang, payload_of, process, run

        if __name__ == "__main__":
            asyncio.run(run(process(hang), payload_of(Path({str(path)!r}))))
    """
    worker = await script_process(script)
    try:
        await until(path.exists)
    finally:
        worker.kill()
        await worker.wait()
    child, grandchild = map(int, path.read_text().split())
    await until(lambda: is_gone(child) and is_gone(grandchild))


async def test_a_worker_that_ends_takes_its_children_along(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    script = f"""
        import asyncio
        from pathlib import Path
        from tests.unit.test_executors import hello, payload_of, process, run

        asyncio.run(run(process(hello, idle_seconds=600), payload_of(Path({str(path)!r}))))
    """
    worker = await script_process(script)
    async with asyncio.timeout(DEADLINE):
        assert await worker.wait() == 0
    pid = int(path.read_text().split()[0])
    await until(lambda: is_gone(pid))


def test_a_handler_that_another_process_cannot_find_is_refused() -> None:
    def local(job: Job) -> None:
        pass

    for func in (local, functools.partial(local), lambda job: None):
        with pytest.raises(InvalidInput, match="define it at the top level of a module"):
            process(func)


async def test_a_handler_that_cannot_be_pickled_fails_its_job_with_the_fix() -> None:
    func: Any = hello
    executor = process(functools.partial(func, threading.Lock()))
    with pytest.raises(InvalidInput, match="cannot be sent to another process"):
        await run(executor)


# ---- again after a failure


def retrying(func: Callable[..., Any], kind: Kind = "async", **options: Any) -> Any:
    return DatabaseRetryEntrypointExecutor(parameters=parameters(func, kind), **options)


async def fail_async(job: Job) -> None:
    raise ValueError("boom")


@pytest.mark.parametrize(("kind", "func"), [("async", fail_async), ("thread", fail)])
async def test_a_failure_becomes_a_request_for_a_retry(
    kind: Kind, func: Callable[..., Any]
) -> None:
    with pytest.raises(RetryRequested) as caught:
        await run(retrying(func, kind), make_job(attempts=2))
    assert caught.value.delay == timedelta(seconds=4)
    assert caught.value.reason == "boom"
    assert isinstance(caught.value.__cause__, ValueError)


async def test_a_failure_in_a_process_becomes_a_request_for_a_retry() -> None:
    with pytest.raises(RetryRequested) as caught:
        await run(retrying(fail, "process"))
    assert caught.value.reason == "boom"
    record = describe(caught.value)
    assert (record.exception_type, record.exception_message) == ("ValueError", "boom")
    assert "in fail" in record.traceback


async def test_a_handler_that_succeeds_is_left_alone() -> None:
    await run(retrying(succeed))


@pytest.mark.parametrize(("attempts", "expected"), [(4, RetryRequested), (5, ValueError)])
async def test_five_attempts_are_five_retries_and_the_sixth_failure_is_final(
    attempts: int, expected: type[Exception]
) -> None:
    with pytest.raises(expected):
        await run(retrying(fail_async, max_attempts=5), make_job(attempts=attempts))


@pytest.mark.parametrize(
    "error", [RetryRequested(timedelta(hours=1), "mine"), asyncio.CancelledError(), SystemExit(1)]
)
async def test_requests_and_cancellations_pass_unchanged(error: BaseException) -> None:
    async def handler(job: Job) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await retrying(handler).execute(make_job(), Context(make_job(), {}))
    assert caught.value is error
    assert caught.value.__cause__ is None


async def test_a_failure_that_cannot_be_printed_is_retried() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    async def handler(job: Job) -> None:
        raise Odd

    with pytest.raises(RetryRequested) as caught:
        await run(retrying(handler))
    assert caught.value.reason == "<unprintable Odd>"


async def test_another_executor_can_be_wrapped() -> None:
    class Failing(AbstractEntrypointExecutor):
        async def execute(self, job: Job, context: Context) -> None:
            raise ValueError("inner")

    inner = Failing(parameters(succeed))
    with pytest.raises(RetryRequested, match="inner"):
        await run(retrying(succeed, inner=inner))


def test_the_capacity_is_that_of_what_runs_the_handler() -> None:
    assert retrying(fail, "thread").capacity == 32
    assert retrying(fail_async).capacity == 0


def test_the_delays_are_those_of_the_documented_table() -> None:
    executor = retrying(succeed, max_delay=timedelta(seconds=60))
    seconds = [executor.delay(attempt).total_seconds() for attempt in range(8)]
    assert seconds == [1, 2, 4, 8, 16, 32, 60, 60]


@given(
    attempt=st.integers(0, 10**6),
    initial=st.timedeltas(timedelta(microseconds=1), timedelta.max),
    most=st.timedeltas(timedelta(microseconds=1), timedelta.max),
    multiplier=st.floats(1, 1e308) | st.floats(1, 1.01) | st.integers(1, 10**400),
)
def test_delays_grow_to_the_cap_for_any_attempt(
    attempt: int, initial: timedelta, most: timedelta, multiplier: float
) -> None:
    executor = retrying(
        succeed, initial_delay=initial, max_delay=most, backoff_multiplier=multiplier
    )
    delay, later = executor.delay(attempt), executor.delay(attempt + 1)
    assert min(initial, most) <= delay <= later <= most
    assert executor.delay(0) == min(initial, most)


async def test_jitter_waits_any_part_of_the_delay() -> None:
    executor = retrying(fail_async, jitter=True, initial_delay=timedelta(seconds=10))
    delays = []
    for _ in range(100):
        with pytest.raises(RetryRequested) as caught:
            await run(executor, make_job(attempts=1))
        delays.append(caught.value.delay)
    assert all(timedelta(0) <= delay <= timedelta(seconds=20) for delay in delays)
    assert min(delays) < timedelta(seconds=10) < max(delays)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_attempts": 0}, "max_attempts must be a whole number of at least 1, got 0"),
        ({"max_attempts": 1.5}, "got 1.5"),
        ({"initial_delay": timedelta(0)}, "initial_delay must be a timedelta above zero"),
        ({"initial_delay": 1}, "initial_delay must be a timedelta above zero, got 1"),
        ({"max_delay": timedelta(seconds=-1)}, "max_delay must be a timedelta above zero"),
        ({"backoff_multiplier": 0.5}, "backoff_multiplier must be a finite number from 1, got 0.5"),
        ({"backoff_multiplier": math.nan}, "got nan"),
        ({"backoff_multiplier": math.inf}, "got inf"),
        ({"backoff_multiplier": "2"}, "got '2'"),
    ],
)
def test_a_backoff_that_can_never_work_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match="DatabaseRetryEntrypointExecutor") as caught:
        retrying(succeed, **options)
    assert said in str(caught.value)
