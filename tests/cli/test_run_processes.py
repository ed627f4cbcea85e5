"""`--processes`: workers that die are replaced, and their jobs do not wait for their leases."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from typing import TYPE_CHECKING

import psutil
import pytest

from holdfast import JobId, Status
from tests.cli.running import Bench, Running, get, installed, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers import Database

TWO = ("jobs:main", "--processes", "2", "--drain-timeout", "1h")
# Longer than any test: whatever starts again does not do so because a lease ran out.
LONG_LEASE = ("--heartbeat-timeout", "1h")


@pytest.fixture
def bench(tmp_path: Path, pg18: Database) -> Iterator[Bench]:
    yield from installed(tmp_path, pg18.dsn)


def pids(bench: Bench) -> set[int]:
    return {int(line[1]) for line in bench.journal("made")}


def test_the_jobs_of_a_killed_worker_start_again_within_2_seconds(bench: Bench) -> None:
    supervisor = bench.start(*TWO, *LONG_LEASE)
    bench.noted("made", 2)
    until(lambda: supervisor.log.count("runs jobs:main") == 2, "two workers")
    ids = bench.enqueue("wait", 6)
    began = bench.noted("began", 6)
    [victim, *_] = [int(line[2]) for line in began]
    orphaned = {line[1] for line in began if int(line[2]) == victim}

    os.kill(victim, signal.SIGKILL)
    again = bench.noted("began", 6 + len(orphaned), seconds=2)[6:]

    assert {line[1] for line in again} == orphaned
    until(lambda: len(pids(bench)) == 3, "a replacement")
    bench.go()
    bench.noted("finished", 6)
    supervisor.send(signal.SIGTERM)
    assert supervisor.ended() == 0, supervisor.log
    found = bench.ask(lambda holdfast: holdfast.queries.job_status([JobId(each) for each in ids]))
    assert {status for _, status in found} == {Status.SUCCESSFUL}


def test_workers_killed_all_at_once_are_replaced_and_their_jobs_freed(bench: Bench) -> None:
    supervisor = bench.start(*TWO, *LONG_LEASE)
    until(lambda: supervisor.log.count("runs jobs:main") == 2, "two workers")
    bench.enqueue("wait", 4)
    bench.noted("began", 4)

    for child in supervisor.children():
        os.kill(child, signal.SIGKILL)

    bench.noted("began", 8)
    until(lambda: len(supervisor.children()) == 2, "two replacements")


def test_a_job_that_kills_its_workers_ends_as_a_held_job(bench: Bench) -> None:
    supervisor = bench.start(*TWO, *LONG_LEASE)
    [job_id] = bench.enqueue("die")

    def held() -> bool:
        found = bench.ask(lambda holdfast: holdfast.queries.list_failed_jobs())
        return [job.id for job in found] == [job_id]

    until(held, "the job to be held")
    assert len(bench.journal("dying")) == 2
    bench.enqueue("quick")
    bench.noted("quick")
    assert supervisor.process.poll() is None


def test_drain_mode_ends_with_the_last_worker(bench: Bench) -> None:
    ids = bench.enqueue("quick", 20)

    code, log = bench.run(*TWO, "--mode", "drain")

    assert code == 0, log
    assert sorted(int(line[1]) for line in bench.journal("quick")) == ids


def test_signalling_every_process_of_the_service_is_still_one_graceful_stop(bench: Bench) -> None:
    supervisor = bench.start(*TWO)
    until(lambda: supervisor.log.count("runs jobs:main") == 2, "two workers")
    bench.enqueue("wait", 2)
    bench.noted("began", 2)

    for pid in [*supervisor.children(), supervisor.process.pid]:
        os.kill(pid, signal.SIGTERM)
    until(lambda: supervisor.log.count("running jobs have") == 2, "the stop of both")
    bench.go()

    assert supervisor.ended() == 0, supervisor.log
    assert len(bench.journal("finished")) == 2


def test_a_worker_that_was_told_by_its_supervisor_takes_its_own_signal_as_the_same_stop(
    bench: Bench,
) -> None:
    supervisor = bench.start(*TWO)
    until(lambda: supervisor.log.count("runs jobs:main") == 2, "two workers")
    bench.enqueue("wait", 2)
    bench.noted("began", 2)

    supervisor.send(signal.SIGTERM)
    until(lambda: supervisor.log.count("running jobs have") == 2, "the stop of both")
    for pid in supervisor.children():
        os.kill(pid, signal.SIGTERM)
    # Whoever takes the signal for a second one hands its jobs back, and is gone after that.
    with pytest.raises(subprocess.TimeoutExpired):
        supervisor.process.wait(2)
    bench.go()

    assert supervisor.ended() == 0, supervisor.log
    assert len(bench.journal("finished")) == 2


def test_a_second_signal_to_the_supervisor_is_fast_for_all(bench: Bench) -> None:
    supervisor = bench.start(*TWO)
    until(lambda: supervisor.log.count("runs jobs:main") == 2, "two workers")
    bench.enqueue("wait", 4)
    bench.noted("began", 4)

    supervisor.send(signal.SIGINT)
    until(lambda: supervisor.log.count("running jobs have") == 2, "the stop of both")
    supervisor.send(signal.SIGINT)

    assert supervisor.ended() == 0, supervisor.log
    waiting = bench.ask(lambda holdfast: holdfast.queries.browse_queue(status=Status.QUEUED))
    assert [job.recoveries for job in waiting] == [0] * 4


def test_a_supervisor_that_is_told_to_quit_ends_at_once_with_all_workers(bench: Bench) -> None:
    supervisor = bench.start(*TWO)
    until(lambda: supervisor.log.count("runs jobs:main") == 2, "two workers")
    children = supervisor.children()

    supervisor.send(signal.SIGQUIT)

    supervisor.ended()
    assert not any(map(psutil.pid_exists, children))
    assert len(pids(bench)) == 2


def test_a_frozen_worker_cannot_keep_the_supervisor_from_ending(bench: Bench) -> None:
    supervisor = bench.start("jobs:main", "--processes", "2", "--drain-timeout", "0s")
    until(lambda: supervisor.log.count("runs jobs:main") == 2, "two workers")
    os.kill(supervisor.children()[0], signal.SIGSTOP)

    supervisor.send(signal.SIGTERM)

    supervisor.ended()


def test_workers_whose_supervisor_was_killed_stop_by_themselves(bench: Bench) -> None:
    supervisor = bench.start(*TWO)
    until(lambda: supervisor.log.count("runs jobs:main") == 2, "two workers")
    children = supervisor.children()

    supervisor.send(signal.SIGKILL)

    supervisor.ended()
    until(lambda: not any(map(psutil.pid_exists, children)), "the end of both")


def test_a_target_that_cannot_start_ends_the_supervisor_with_one_line(bench: Bench) -> None:
    code, log = bench.run("jobs:mian", "--processes", "3")

    assert code == 2
    assert len(log.splitlines()) == 1


def succeeded(url: str) -> int:
    _, text = get(f"{url}/metrics")
    found = re.search(r'^holdfast_jobs_succeeded_total{entrypoint="quick"} (\d+)$', text, re.M)
    return int(found[1]) if found else 0


def serving(bench: Bench) -> tuple[Running, str]:
    supervisor = bench.start(*TWO, "--health-port", "0")
    url = supervisor.health()
    until(lambda: "\nholdfast_workers 2\n" in get(f"{url}/metrics")[1], "two workers")
    return supervisor, url


def test_one_port_speaks_for_all_workers(bench: Bench) -> None:
    supervisor, url = serving(bench)

    until(lambda: get(f"{url}/readyz") == (200, "ok\n"), "readiness")
    assert get(f"{url}/livez") == (200, "ok\n")
    bench.enqueue("quick", 10)
    until(lambda: succeeded(url) == 10, "the sum of both")

    os.kill(supervisor.children()[0], signal.SIGKILL)
    until(lambda: len(pids(bench)) == 3, "a replacement")
    until(lambda: "\nholdfast_workers 2\n" in get(f"{url}/metrics")[1], "two workers again")
    assert succeeded(url) == 10
