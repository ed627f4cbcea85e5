"""Handlers in child processes: found by name, fed with a job, killed without mercy."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from holdfast.errors import HandlerExit, InvalidInput, RetryRequested
from holdfast.executors import ProcessExecutor, RemoteError
from holdfast.executors.child import HandlerProcess
from holdfast.executors.process import Run
from holdfast.retry import describe
from tests.unit.running import DEADLINE, fail, make_job, parameters, run, succeed, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.models import Job


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


def ask_in_a_group(job: Job) -> None:
    raise ExceptionGroup("several", [RetryRequested(timedelta(seconds=30), "again")])


def return_coroutine(job: Job) -> Any:
    return succeed(job)


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


async def test_a_request_for_a_retry_in_a_group_comes_back_as_one() -> None:
    with pytest.raises(RetryRequested) as caught:
        await run(process(ask_in_a_group))
    assert (caught.value.delay, caught.value.reason) == (timedelta(seconds=30), "again")


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


async def test_a_cancelled_child_frees_its_place_for_the_next_job(tmp_path: Path) -> None:
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


async def test_a_job_cancelled_while_its_child_is_born_ends_with_it() -> None:
    turn, child = Run(), HandlerProcess()
    try:
        turn.stop()
        assert child.alive
        turn.begin(child)
        await until(lambda: not child.alive)
    finally:
        child.kill()


async def test_a_cancellation_after_the_job_was_done_spares_the_child() -> None:
    turn, child = Run(), HandlerProcess()
    try:
        turn.begin(child)
        assert turn.end()
        turn.stop()
        assert child.ask(b"no pickle") is not None
        assert not turn.end()
    finally:
        child.kill()


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
        from tests.unit.test_process_executor import hang, payload_of, process, run

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
        from tests.unit.test_process_executor import hello, payload_of, process, run

        asyncio.run(run(process(hello, idle_seconds=600), payload_of(Path({str(path)!r}))))
    """
    worker = await script_process(script)
    try:
        async with asyncio.timeout(DEADLINE):
            assert await worker.wait() == 0
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()
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
