"""A handler that blocks the event loop for ever costs its worker, not the jobs beside it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from holdfast import Job, JobId, Status
from tests.cli.running import Bench, get, installed, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast import LogEntry
    from tests.servers import Database

EXIT_BLOCKED = 76
LONG_LEASE = ("--heartbeat-timeout", "1h")
SHORT_BLOCK = ("--max-loop-block", "3s")

HASTY = """
import asyncio, time
from datetime import timedelta
import jobs

async def main():
    hf = jobs.make()

    @hf.entrypoint("hasty", timeout=timedelta(seconds=2))
    async def hasty(job):
        jobs.note("began", job.id)
        time.sleep(3600)

    return hf
"""
HOLDING = """
import re
import jobs

async def main():
    hf = jobs.make()

    @hf.entrypoint("match")
    async def match(job):
        re.match(r"(a+)+$", "a" * 64 + "!")

    return hf
"""
LENT = """
import asyncpg, os, time
from contextlib import asynccontextmanager
from holdfast import Holdfast
import jobs

@asynccontextmanager
async def main():
    connection = await asyncpg.connect(os.environ["HOLDFAST_DSN"])
    hf = Holdfast.from_asyncpg_connection(connection)

    @hf.entrypoint("block")
    async def block(job):
        jobs.note("began", job.id)
        time.sleep(3600)

    yield hf
"""


@pytest.fixture
def bench(tmp_path: Path, pg18: Database) -> Iterator[Bench]:
    yield from installed(tmp_path, pg18.dsn)


def rows(bench: Bench, ids: list[int]) -> list[Job]:
    return bench.ask(lambda hf: hf.queries.get_jobs([JobId(each) for each in ids]))


def history(bench: Bench, job_id: int) -> list[LogEntry]:
    return bench.ask(lambda hf: hf.queries.job_history(JobId(job_id)))


@pytest.mark.parametrize("loop", ["--uvloop", "--no-uvloop"])
def test_the_process_ends_and_the_jobs_beside_it_are_released(bench: Bench, loop: str) -> None:
    beside = bench.enqueue("wait", 5)
    worker = bench.start("jobs:main", loop, *SHORT_BLOCK, *LONG_LEASE, "--health-port", "0")
    url = worker.health()
    bench.noted("began", 5)
    until(lambda: get(f"{url}/readyz")[0] == 200, "readiness")
    [blocking] = bench.enqueue("block")
    bench.noted("began", 6)

    def reported_or_ended() -> bool:
        # Between the two there may be less time than a busy machine needs to ask.
        reported = "event loop has been blocked" in get(f"{url}/readyz")[1]
        return reported or worker.process.poll() is not None

    until(reported_or_ended, "readiness to say so, or the end of the process")
    assert worker.ended() == EXIT_BLOCKED

    assert f"the handler of 'block' (job {blocking}) has blocked the event loop" in worker.log
    assert "longer than max_loop_block (0:00:03)" in worker.log
    assert "in block: time.sleep(3600) < " in worker.log
    assert worker.log.count("blocked the event loop for more than 2 s at ") == 1
    assert worker.log.count("blocked for") == 0, "one watchdog warns"
    found = rows(bench, beside)
    assert [(job.status, job.recoveries) for job in found] == [(Status.QUEUED, 0)] * 5
    [job] = rows(bench, [blocking])
    assert (job.status, job.recoveries) == (Status.PICKED, 0), "left to be recovered"


def test_a_blocked_process_is_replaced_and_the_blocking_job_is_held_at_last(bench: Bench) -> None:
    supervisor = bench.start("jobs:main", "--processes", "2", *SHORT_BLOCK, *LONG_LEASE)
    until(lambda: supervisor.log.count("runs jobs:main") == 2, "two workers")
    beside = bench.enqueue("wait", 10)
    [blocking] = bench.enqueue("block")

    def held() -> bool:
        found = bench.ask(lambda hf: hf.queries.list_failed_jobs())
        return [job.id for job in found] == [blocking]

    until(held, "the blocking job to be held", seconds=90)
    assert supervisor.log.count(f"exit code {EXIT_BLOCKED} and its jobs are freed") == 3
    bench.go()
    bench.noted("finished", len(beside))
    supervisor.send(signal.SIGTERM)
    assert supervisor.ended() == 0, supervisor.log
    assert [entry.reason for entry in history(bench, blocking)][-1] == "crash_loop"
    for job_id in beside:
        *_, last = history(bench, job_id)
        assert (last.status, last.recoveries) == (Status.SUCCESSFUL, 0)


def test_a_blocking_handler_has_no_longer_than_its_timeout(bench: Bench) -> None:
    (bench.directory / "hasty.py").write_text(HASTY)
    [job_id] = bench.enqueue("hasty")

    code, log = bench.run("hasty:main")

    assert code == EXIT_BLOCKED
    assert f"(job {job_id}) has blocked the event loop for longer than the timeout" in log


def test_a_process_whose_interpreter_is_held_ends_as_well(bench: Bench) -> None:
    (bench.directory / "holding.py").write_text(HOLDING)
    [job_id] = bench.enqueue("match")

    code, log = bench.run("holding:main", "--max-loop-block", "1s", *LONG_LEASE)

    assert code == 1
    assert 'holding.py", line 10 in match' in log
    [job] = rows(bench, [job_id])
    assert (job.status, job.recoveries) == (Status.PICKED, 0), "left to be recovered"


def test_a_process_on_one_connection_ends_as_well(bench: Bench) -> None:
    (bench.directory / "lent.py").write_text(LENT)
    [job_id] = bench.enqueue("block")

    code, log = bench.run("lent:main", *SHORT_BLOCK)

    assert code == EXIT_BLOCKED
    assert f"(job {job_id}) has blocked the event loop for longer than max_loop_block" in log
