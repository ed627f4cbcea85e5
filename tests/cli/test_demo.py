"""The demo as a newcomer runs it: it plays by itself, adds up and leaves no process behind."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers import SharedServers

_ACCOUNT = re.compile(r"^(\w+) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +(yes|NO)", re.MULTILINE)


@contextmanager
def started(directory: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", "demo", "--dir", str(directory), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run(directory: Path, *words: str) -> tuple[int, str, str]:
    with started(directory, *words) as process:
        output, errors = process.communicate(timeout=250)
        return process.returncode, output, errors


def left_behind(directory: Path) -> list[str]:
    """Processes that still work on the demo: its workers and its server."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if str(directory) in words and process.pid != os.getpid():
            found.append(words)
    return found


def accounts(output: str) -> dict[str, list[int]]:
    """Of each entrypoint: enqueued, successful, exception, failed, canceled, waiting."""
    return {
        match[1]: [int(match[column]) for column in range(2, 8)]
        for match in _ACCOUNT.finditer(output)
    }


@pytest.fixture
def directory(server_directory: Path) -> Path:
    return server_directory / "demo"


def play(directory: Path, *words: str) -> str:
    code, output, errors = run(directory, *words)
    assert (code, errors) == (0, ""), output + errors
    return output


class Played(NamedTuple):
    directory: Path
    output: str


@pytest.fixture(scope="module")
def played(pg_servers: SharedServers) -> Played:
    """A demo that has been played to its end."""
    directory = pg_servers.directory / f"demo-{secrets.token_hex(6)}"
    return Played(directory, play(directory, "--seconds", "8"))


def test_the_demo_plays_by_itself_and_accounts_for_every_job(played: Played) -> None:
    directory, output = played
    found = accounts(output)
    for name, (enqueued, *ends) in found.items():
        assert enqueued == sum(ends), (name, output)
    assert found["all"] == [
        sum(column) for column in zip(*(found[n] for n in found if n != "all"), strict=True)
    ]
    successful, exception, failed, canceled, waiting = range(1, 6)
    for name in ("fast", "slow", "flaky", "deferred", "unique", "tick"):
        assert found[name][successful] > 0, name
    assert found["flaky"][exception] > 0
    assert found["broken"][failed] == found["broken"][0] > 0
    assert found["poison"] == [1, 0, 0, 1, 0, 0]
    assert (found["later"][canceled], found["later"][waiting]) == (2, 2)

    for told in (
        r"Worker 1 is killed \(SIGKILL\) while it holds \d+ job",
        r"Worker 2 is frozen \(SIGSTOP\): its \d+ job",
        r"[1-9]\d* late writes were refused",
        r"held after 3 deaths",
        r"it adds up\.",
        r"[1-9]\d* jobs were not enqueued because their dedupe key was taken",
        r"[1-9]\d* leases expired",
        r"job \d+ \(\w+\): worker 2 came back with 'succeeded', worker \d's successful stands",
        r"failed --embedded=",
    ):
        assert re.search(told, output), (told, output)
    # The ledger is on the last screen of a terminal of 24 lines.
    assert len(output[output.index("The ledger: ") :].splitlines()) < 20
    assert "\x1b" not in output
    assert left_behind(directory) == []


def test_jobs_of_an_earlier_run_can_be_kept(played: Played) -> None:
    play(played.directory, "--seconds", "5", "--keep")
    listed = subprocess.run(
        [sys.executable, "-m", "holdfast", "failed", "--json", f"--embedded={played.directory}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    poisoned = [job for job in json.loads(listed.stdout) if job["entrypoint"] == "poison"]
    assert len(poisoned) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_stops_its_workers_and_its_server(
    directory: Path, number: signal.Signals
) -> None:
    with started(directory) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "jobs at once" in line:
                break
        assert any("demo.worker" in words for words in left_behind(directory))
        process.send_signal(number)
        output, errors = process.communicate(timeout=250)
    assert process.returncode == 130, output + errors
    assert "Traceback" not in errors
    assert "interrupted" in output
    assert left_behind(directory) == []


def test_a_folder_that_holds_something_else_is_left_alone(directory: Path) -> None:
    directory.mkdir()
    (directory / "thesis.txt").write_text("years of work")
    code, output, errors = run(directory)
    assert (code, output) == (2, "")
    assert len(errors.splitlines()) == 1
    assert "--dir" in errors
    assert [path.name for path in directory.iterdir()] == ["thesis.txt"]


def test_it_does_not_pretend_to_use_a_database_that_is_named(directory: Path) -> None:
    code, output, errors = run(directory, "--dsn", "postgresql://nobody@localhost/mine")
    assert (code, output) == (2, "")
    assert "--dir" in errors
    assert not directory.exists()
