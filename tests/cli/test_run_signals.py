"""How a worker stops: gently, fast, and in any case."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import psycopg
import pytest

from holdfast import JobId, Status
from tests.cli.running import Bench, installed, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers import Database

LOOPS = pytest.mark.parametrize("loop", ["--uvloop", "--no-uvloop"])
FOR_EVER = ("--drain-timeout", "1h")


@pytest.fixture
def bench(tmp_path: Path, pg18: Database) -> Iterator[Bench]:
    yield from installed(tmp_path, pg18.dsn)


def status(bench: Bench, job: int) -> Status:
    [(_, found)] = bench.ask(lambda holdfast: holdfast.queries.job_status([JobId(job)]))
    return found


@pytest.mark.parametrize(
    ("loop", "number"), [("--uvloop", signal.SIGINT), ("--no-uvloop", signal.SIGTERM)]
)
def test_the_first_signal_lets_running_jobs_finish(bench: Bench, loop: str, number: int) -> None:
    [job] = bench.enqueue("wait")
    worker = bench.start("jobs:main", loop, *FOR_EVER)
    bench.noted("began")

    worker.send(number)
    until(lambda: "stopping" in worker.log, "the stop")
    [later] = bench.enqueue("quick")
    bench.go()

    assert worker.ended() == 0, worker.log
    assert status(bench, job) is Status.SUCCESSFUL
    assert status(bench, later) is Status.QUEUED


def test_the_second_signal_releases_running_jobs_at_once(bench: Bench) -> None:
    [job_id] = bench.enqueue("wait")
    worker = bench.start("jobs:main", *FOR_EVER)
    bench.noted("began")

    worker.send(signal.SIGTERM)
    until(lambda: "stopping" in worker.log, "the stop")
    worker.send(signal.SIGTERM)

    assert worker.ended() == 0, worker.log
    [job] = bench.ask(lambda holdfast: holdfast.queries.get_jobs([JobId(job_id)]))
    assert (job.status, job.attempts, job.recoveries) == (Status.QUEUED, 0, 0)


def test_jobs_that_outlast_the_drain_timeout_are_released(bench: Bench) -> None:
    [job_id] = bench.enqueue("wait")
    worker = bench.start("jobs:main", "--drain-timeout", "100ms")
    bench.noted("began")

    worker.send(signal.SIGTERM)

    assert worker.ended() == 0, worker.log
    assert status(bench, job_id) is Status.QUEUED


@LOOPS
def test_a_handler_that_blocks_the_event_loop_cannot_keep_the_process_alive(
    bench: Bench, loop: str
) -> None:
    [job_id] = bench.enqueue("block")
    worker = bench.start("jobs:main", loop, "--drain-timeout", "200ms")
    bench.noted("began")

    worker.send(signal.SIGTERM)

    assert worker.ended() == 75, worker.log
    assert "their leases have run out" in worker.log
    assert status(bench, job_id) is Status.PICKED


def test_a_second_signal_also_shortens_the_wait_for_a_blocked_event_loop(bench: Bench) -> None:
    bench.enqueue("block")
    worker = bench.start("jobs:main", *FOR_EVER)
    bench.noted("began")

    worker.send(signal.SIGTERM)
    # Signals of one kind that come together are one for the kernel.
    worker.send(signal.SIGINT)

    assert worker.ended() == 75, worker.log


def test_a_blocked_event_loop_is_reported_with_the_entrypoint_and_the_job(bench: Bench) -> None:
    [job_id] = bench.enqueue("block")
    worker = bench.start("jobs:main")

    warning = f"the handler of 'block' (job {job_id}) has blocked the event loop for more than 2 s"
    until(lambda: warning in worker.log, "the warning")

    assert "jobs.py:" in worker.log.partition(warning)[2].partition("\n")[0]


def test_a_signal_during_a_slow_start_ends_it(bench: Bench) -> None:
    worker = bench.start("jobs:hangs", *FOR_EVER)
    bench.noted("made")

    worker.send(signal.SIGTERM)

    assert worker.ended() == 0, worker.log


def test_a_start_that_blocks_ends_in_time_as_well(bench: Bench) -> None:
    worker = bench.start("jobs:blocks", "--drain-timeout", "0s")
    bench.noted("made")

    worker.send(signal.SIGTERM)

    assert worker.ended() == 75, worker.log


def test_a_worker_whose_scheduler_fails_stops_with_an_error(bench: Bench) -> None:
    (bench.directory / "ticking.py").write_text(
        "import jobs\n"
        "from holdfast.scheduler import manager\n"
        "manager.PATIENCE_SECONDS = 0.5\n"
        "async def main():\n"
        "    hf = jobs.make()\n"
        "    @hf.schedule('tick', '* * * * * *')\n"
        "    async def tick(schedule):\n"
        "        jobs.note('tick')\n"
        "    return hf\n"
    )
    worker = bench.start("ticking:main")
    bench.noted("tick")

    with psycopg.connect(bench.dsn, autocommit=True) as connection:
        connection.execute("update holdfast_schedules set expression = 'no cron'")

    assert worker.ended() != 0, worker.log
    assert "the scheduler failed" in worker.log
