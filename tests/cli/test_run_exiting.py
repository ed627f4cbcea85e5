"""sys.exit() in what a handler has started does not end a worker process."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

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
    until(lambda: "SystemExit was raised outside any handler" in worker.log, "the first")
    until(lambda: "KeyboardInterrupt was raised outside any handler" in worker.log, "the second")
    bench.go()
    bench.noted("finished", len(beside))
    assert len(bench.journal("began")) == len(beside)

    worker.send(signal.SIGTERM)
    assert worker.ended() == 0, worker.log
