"""sys.exit() outside any handler, in what one has started, leaves no job to its lease."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
import uvloop

from holdfast import Holdfast, Job
from tests.worker.workers import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers import Database

JOBS = 20


def in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 3)


def in_a_task() -> None:
    async def leave() -> None:
        sys.exit(3)

    # The loop ends with it, so that it needs no other keeper.
    asyncio.get_running_loop().create_task(leave())


def jobs_of(database: Database) -> list[tuple[str, int, int]]:
    """How many jobs there are by status and recoveries."""
    with psycopg.connect(database.dsn) as connection:
        return connection.execute(
            "select status::text, recoveries, count(*) from holdfast group by 1, 2"
        ).fetchall()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("leave", [in_a_callback, in_a_task])
@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.SelectorEventLoop])
def test_all_jobs_are_released_when_the_event_loop_is_ended(
    pg18: Database,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    leave: Callable[[], None],
) -> None:
    raised: list[BaseException] = []

    async def work() -> None:
        started = 0
        async with Holdfast.connect(pg18.dsn) as hf:
            await hf.install()

            @hf.entrypoint("wait")
            async def wait(job: Job) -> None:
                nonlocal started
                started += 1
                if started == JOBS:
                    leave()
                await asyncio.Event().wait()

            await hf.queries.enqueue(["wait"] * JOBS)
            await hf.run(signals=False)

    def main() -> None:
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(work())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=main)
    thread.start()
    thread.join(PATIENCE)

    assert [type(error) for error in raised] == [SystemExit]
    assert jobs_of(pg18) == [("queued", 0, JOBS)]


# Two of them in one turn: the second ends the loop while it cancels its tasks.
PROGRAM = """
import asyncio, sys, time
import psycopg, uvloop
from holdfast import Holdfast

def callback():
    asyncio.get_running_loop().call_soon(sys.exit, 3)

def later():
    # The second one ends the loop while the worker releases its jobs.
    loop = asyncio.get_running_loop()
    loop.call_soon(sys.exit, 3)
    loop.call_soon(loop.call_soon, loop.call_soon, sys.exit, 3)

def task():
    async def leave():
        sys.exit(3)
    kept.append(asyncio.get_running_loop().create_task(leave()))

kept = []

async def work():
    started = 0
    async with Holdfast.connect(sys.argv[1]) as hf:
        @hf.entrypoint("wait")
        async def wait(job):
            nonlocal started
            started += 1
            if started == {jobs}:
                {leave}()
                {leave}()
            await asyncio.Event().wait()

        await hf.run()

def goes_on():
    try:
        asyncio.run(work())
    except SystemExit:
        with psycopg.connect(sys.argv[1], autocommit=True) as connection:
            while connection.execute("select from holdfast where status = 'picked'").fetchone():
                time.sleep(0.02)
        raise

{ends}
"""


@pytest.mark.parametrize("leave", ["callback", "task", "later"])
@pytest.mark.parametrize(
    "ends",
    [
        "asyncio.run(work())",
        "uvloop.run(work())",
        "asyncio.new_event_loop().run_until_complete(work())",
        "uvloop.new_event_loop().run_until_complete(work())",
        "goes_on()",
    ],
)
def test_a_program_that_exits_twice_at_once_releases_its_jobs(
    pg18: Database, ends: str, leave: str
) -> None:
    async def prepare() -> None:
        async with Holdfast.connect(pg18.dsn) as hf:
            await hf.install()
            await hf.queries.enqueue(["wait"] * JOBS)

    asyncio.run(prepare())
    program = PROGRAM.format(jobs=JOBS, leave=leave, ends=ends)
    command = [sys.executable, "-c", program, pg18.dsn]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert ended.returncode == 3, ended.stderr
    assert jobs_of(pg18) == [("queued", 0, JOBS)], ended.stderr
