"""`--reload`: a changed file starts everything anew."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.cli.running import JOBS, Bench, installed, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers import Database


@pytest.fixture
def bench(tmp_path: Path, pg18: Database) -> Iterator[Bench]:
    yield from installed(tmp_path, pg18.dsn)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_changed_file_is_run_after_it_was_saved(bench: Bench, processes: str) -> None:
    running = bench.start("jobs:main", "--reload", "--processes", processes)
    bench.enqueue("quick")
    bench.noted("quick")

    (bench.directory / "jobs.py").write_text(JOBS.replace('note("quick"', 'note("changed"'))
    until(lambda: "starts anew" in running.log, "the change to be seen")
    bench.enqueue("quick")

    bench.noted("changed")
    running.send(signal.SIGINT)
    assert running.ended() == 0, running.log


def test_a_broken_file_is_waited_for_and_mended(bench: Bench) -> None:
    (bench.directory / "jobs.py").write_text("def main(:\n")
    running = bench.start("jobs:main", "--reload")
    until(lambda: "waiting for a change" in running.log, "the failure")

    (bench.directory / "jobs.py").write_text(JOBS)

    bench.enqueue("quick")
    bench.noted("quick")
    running.send(signal.SIGTERM)
    assert running.ended() == 0, running.log
