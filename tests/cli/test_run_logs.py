"""What a worker logs, and what it must not."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from holdfast.cli.logs import JsonFormatter, TextFormatter
from tests.cli.running import Bench, installed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers import Database

SECRET = b"canary-7c1f"


@pytest.fixture
def bench(tmp_path: Path, pg18: Database) -> Iterator[Bench]:
    yield from installed(tmp_path, pg18.dsn)


def test_json_logs_are_objects_with_the_job_and_never_its_payload(bench: Bench) -> None:
    [failing] = bench.enqueue("fail", payload=SECRET)
    [quick] = bench.enqueue("quick", payload=SECRET)

    code, log = bench.run(
        "jobs:main", "--mode", "drain", "--log-format", "json", "--log-level", "debug"
    )

    assert code == 0, log
    lines = [json.loads(line) for line in log.splitlines()]
    assert all({"ts", "level", "logger", "message"} <= line.keys() for line in lines)
    by_job = {line["job_id"]: line for line in lines if "job_id" in line}
    assert by_job[failing]["error_type"] == "ValueError"
    assert by_job[failing]["entrypoint"] == "fail"
    assert by_job[failing]["level"] == "warning"
    assert by_job[quick]["outcome"] == "succeeded"
    assert SECRET.decode() not in log


def test_text_logs_name_a_failed_job_and_never_its_payload(bench: Bench) -> None:
    [failing] = bench.enqueue("fail", payload=SECRET)

    code, log = bench.run("jobs:main", "--mode", "drain", "--log-level", "debug")

    assert code == 0, log
    assert f"job {failing} (fail) failed with ValueError" in log
    assert SECRET.decode() not in log


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("app", logging.INFO, "app.py", 1, message, None, None)
    made.__dict__.update(extra)
    return made


def test_a_message_can_neither_forge_a_line_nor_command_a_terminal() -> None:
    forged = record("quiet\n2030-01-01 ERROR all is lost\x1b[2J")

    assert len(TextFormatter().format(forged).splitlines()) == 1
    assert "\x1b" not in TextFormatter().format(forged)
    assert len(JsonFormatter().format(forged).splitlines()) == 1


def test_only_known_extras_are_written() -> None:
    written = json.loads(JsonFormatter().format(record("x", job_id=7, payload="secret")))

    assert written["job_id"] == 7
    assert "payload" not in written
