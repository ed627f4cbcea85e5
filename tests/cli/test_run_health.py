"""`--health-port`: what a worker tells orchestrators and Prometheus."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.cli.running import Bench, get, installed, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from devtools.cluster import Cluster
    from tests.servers import Database

SERVED = ("--health-port", "0")


@pytest.fixture
def bench(tmp_path: Path, pg18: Database) -> Iterator[Bench]:
    yield from installed(tmp_path, pg18.dsn)


def test_a_worker_is_live_while_it_starts_and_ready_once_it_works(bench: Bench) -> None:
    starting = bench.start("jobs:hangs", *SERVED).health()
    working = bench.start("jobs:main", *SERVED).health()

    assert get(f"{starting}/livez") == (200, "ok\n")
    assert get(f"{starting}/readyz") == (503, "the worker is starting\n")
    until(lambda: get(f"{working}/readyz") == (200, "ok\n"), "readiness")
    assert get(f"{working}/livez") == (200, "ok\n")


def test_health_is_answered_while_a_handler_blocks_the_event_loop(bench: Bench) -> None:
    bench.enqueue("block")
    url = bench.start("jobs:main", *SERVED).health()
    bench.noted("began")

    assert get(f"{url}/livez") == (200, "ok\n")
    assert "\nholdfast_running 1\n" in get(f"{url}/metrics")[1]


def test_metrics_show_what_waits(bench: Bench) -> None:
    bench.enqueue("unserved", 4)
    url = bench.start("jobs:main", *SERVED).health()
    until(lambda: get(f"{url}/readyz")[0] == 200, "readiness")
    text = get(f"{url}/metrics")[1]
    assert 'holdfast_queue_depth{entrypoint="unserved",status="queued"} 4\n' in text
    assert 'holdfast_queue_oldest_age_seconds{entrypoint="unserved"}' in text


def test_metrics_count_by_outcome_and_entrypoint(bench: Bench) -> None:
    bench.enqueue("quick", 3)
    bench.enqueue("fail")
    url = bench.start("jobs:main", *SERVED).health()

    def value(series: str) -> str | None:
        found = re.search(f"^{re.escape(series)} (.+)$", get(f"{url}/metrics")[1], re.M)
        return found[1] if found else None

    until(lambda: value('holdfast_jobs_succeeded_total{entrypoint="quick"}') == "3", "successes")
    until(lambda: value('holdfast_jobs_failed_total{entrypoint="fail"}') == "1", "failure")
    assert value('holdfast_jobs_claimed_total{entrypoint="quick"}') == "3"
    assert value('holdfast_jobs_lost_total{entrypoint="quick"}') == "0"
    assert value('holdfast_job_wait_seconds_count{entrypoint="quick"}') == "3"
    assert value('holdfast_job_duration_seconds_count{entrypoint="quick"}') == "3"
    assert value('holdfast_job_duration_seconds_bucket{entrypoint="quick",le="+Inf"}') == "3"


def test_a_worker_without_its_database_is_not_ready(
    tmp_path: Path, controlled_server: Cluster
) -> None:
    bench = Bench(tmp_path, controlled_server.dsn)
    bench.ask(lambda holdfast: holdfast.install())
    try:
        url = bench.start("jobs:main", *SERVED).health()
        until(lambda: get(f"{url}/readyz")[0] == 200, "readiness")

        controlled_server.stop()
        assert get(f"{url}/readyz") == (503, "the database does not answer\n")

        controlled_server.start()
        until(lambda: get(f"{url}/readyz")[0] == 200, "readiness again")
    finally:
        bench.close()


def test_only_plain_questions_from_this_machine_are_answered(bench: Bench) -> None:
    url = bench.start("jobs:hangs", *SERVED).health()

    assert get(f"{url}/")[0] == 404
    assert get(f"{url}/livez", method="POST")[0] == 405
    assert get(f"{url}/livez?verbose", method="HEAD") == (200, "")
    assert get(f"{url}/metrics", host="rebound.example.com")[0] == 421
    assert get(f"{url}/metrics", host="localhost:80")[0] == 200


def test_a_port_that_is_taken_is_one_line(bench: Bench) -> None:
    url = bench.start("jobs:hangs", *SERVED).health()

    code, log = bench.run("jobs:main", "--health-port", url.rpartition(":")[2])

    assert code == 1
    assert "cannot be used" in log
    assert len(log.splitlines()) == 1


def test_a_thousand_open_connections_take_nothing_from_the_worker(bench: Bench) -> None:
    worker = bench.start("jobs:main", *SERVED)
    url = worker.health()
    until(lambda: get(f"{url}/readyz")[0] == 200, "readiness")
    host, port = url.removeprefix("http://").split(":")
    process = psutil.Process(worker.process.pid)
    before = process.num_fds()

    with ExitStack() as connections:
        for _ in range(1000):
            connection = socket.create_connection((host, int(port)), timeout=10)
            connections.enter_context(connection)
        until(lambda: get(f"{url}/readyz") == (200, "ok\n"), "readiness beside them")
        assert process.num_fds() < before + 100
        bench.enqueue("quick", 3)
        bench.noted("quick", 3)

    assert len(worker.log.splitlines()) < 50
