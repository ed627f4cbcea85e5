"""What a handler does to the event loop or has started there does not cost other jobs."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from holdfast import JobId, Status
from tests.cli.running import Bench, installed, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers import Database

LEAVING = """
import asyncio, sys
import jobs

async def main():
    hf = jobs.make()

    @hf.entrypoint("callback")
    async def callback(job):
        asyncio.get_running_loop().call_soon(sys.exit, 3)

    @hf.entrypoint("task")
    async def task(job):
        async def leave():
            raise KeyboardInterrupt
        asyncio.get_running_loop().create_task(leave())

    @hf.entrypoint("stop")
    async def stop(job):
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.stop)

    @hf.entrypoint("cancel")
    async def cancel(job):
        for task in asyncio.all_tasks():
            task.cancel()

    return hf
"""


@pytest.fixture
def bench(tmp_path: Path, pg18: Database) -> Iterator[Bench]:
    yield from installed(tmp_path, pg18.dsn)


@pytest.mark.parametrize("loop", ["--uvloop", "--no-uvloop"])
def test_the_worker_goes_on_and_still_stops_when_told(bench: Bench, loop: str) -> None:
    (bench.directory / "leaving.py").write_text(LEAVING)
    worker = bench.start("leaving:main", loop)
    beside = bench.enqueue("wait", 3)
    bench.noted("began", 3)
    bench.enqueue("callback")
    bench.enqueue("task")
    bench.enqueue("stop")
    until(lambda: "SystemExit was raised outside any handler" in worker.log, "the first")
    until(lambda: "KeyboardInterrupt was raised outside any handler" in worker.log, "the second")
    until(lambda: "the event loop was stopped" in worker.log, "the third")
    bench.go()
    bench.noted("finished", len(beside))
    assert len(bench.journal("began")) == len(beside)

    worker.send(signal.SIGTERM)
    assert worker.ended() == 0, worker.log


def test_the_jobs_of_a_worker_whose_tasks_are_cancelled_are_released(bench: Bench) -> None:
    (bench.directory / "leaving.py").write_text(LEAVING)
    beside = bench.enqueue("wait", 3)
    worker = bench.start("leaving:main")
    bench.noted("began", 3)
    bench.enqueue("cancel")

    assert worker.ended() == 1
    assert "cancelled the tasks of the worker; it ends" in worker.log
    assert "Traceback" not in worker.log
    found = bench.ask(lambda hf: hf.queries.get_jobs([JobId(each) for each in beside]))
    assert [(job.status, job.recoveries) for job in found] == [(Status.QUEUED, 0)] * 3
