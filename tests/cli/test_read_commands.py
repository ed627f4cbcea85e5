"""failed, log, show, stats, workers: for people, for scripts, and harmless to terminals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import subprocess
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from holdfast import Holdfast, Job
from holdfast.cli import main
from holdfast.cli.output import clean, duration, size
from tests.cli.command_line import COMMAND, EVIL, Done, environment, holdfast, inside
from tests.cli.terminal import terminal

if TYPE_CHECKING:
    from collections.abc import Callable

READERS = (
    *(("failed",), ("log",), ("stats",), ("workers",), ("schedules",), ("schedules", "list")),
    *(("show", "1"), ("show", "2"), ("show", "5"), ("show", "6"), ("show", "7")),
)


def _obeyed(text: str) -> list[str]:
    return [letter for letter in text if letter != "\n" and clean(letter) != letter]


def test_held_jobs_are_listed_with_what_an_operator_needs(past: str) -> None:
    done = holdfast("failed", dsn=past)
    assert (done.code, done.err) == (0, "")
    heading, *rows = done.out.splitlines()
    assert re.split(r" {2,}", heading.strip()) == [
        *("id", "entrypoint", "attempts", "created", "payload", "last error")
    ]
    assert [row.split()[:3] for row in rows] == [
        ["5", "flaky", "1"],
        ["3", "held", "0"],
        ["2", "held", "0"],
    ]
    assert "2.9 KB" in rows[0]
    assert "RuntimeError: no luck" in rows[0]
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ \(.* ago\)", rows[0])
    assert len(holdfast("failed", "-n", "1", dsn=past).out.splitlines()) == 2


@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
def test_nothing_in_the_data_reaches_the_terminal_as_a_command(
    past: str, arguments: tuple[str, ...]
) -> None:
    for form in ((), ("--json",)):
        done = inside(*arguments, *form, "--dsn", past)
        assert done.code == 0
        assert not _obeyed(done.out)


@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
def test_json_parses_and_its_times_have_a_zone(past: str, arguments: tuple[str, ...]) -> None:
    found = inside(*arguments, "--json", "--dsn", past).json
    records = found if isinstance(found, list) else [found]
    for record in records:
        for name in ("created", "next_run", "execute_after"):
            if name in record:
                assert datetime.fromisoformat(record[name]).tzinfo is not None


def test_a_job_in_json_has_stable_fields_and_no_token(past: str) -> None:
    flaky, raw, evil = holdfast("failed", "--json", dsn=past).json
    assert set(flaky) == {
        *("id", "entrypoint", "status", "priority", "execute_after", "dedupe_key", "headers"),
        *("attempts", "recoveries", "max_attempts", "max_recoveries", "created", "updated"),
        *("claimed_by", "claimed_at", "heartbeat", "lease", "last_error", "last_error_at"),
        *("held_at", "payload", "payload_encoding", "payload_size"),
    }
    assert (evil["payload"], evil["payload_encoding"]) == (EVIL, "utf-8")
    assert (raw["payload"], raw["payload_encoding"], raw["payload_size"]) == ("/wA=", "base64", 2)
    assert flaky["headers"] == {"tenant": "7"}


def test_the_log_is_filtered(past: str) -> None:
    def statuses(*arguments: str) -> list[str]:
        rows = inside("log", *arguments, "--json", "--dsn", past).json
        return [row["status"] for row in rows]

    assert statuses("--status", "exception") == ["exception"]
    assert statuses("--entrypoint", "flaky") == ["failed", "queued"]
    assert statuses("--entrypoint", "nobody") == []
    assert len(statuses("-n", "2")) == 2
    inside("log", "--status", "lost", "--dsn", past).complains(2, "'lost'", "canceled")
    inside("log", "-n", "0", "--dsn", past).complains(2, "got 0")


def test_show_tells_the_whole_story_in_order(past: str) -> None:
    done = holdfast("show", "5", dsn=past)
    assert (done.code, done.err) == (0, "")
    told = re.findall(r"(?m)^\d{4}-[^ ]+ [^ ]+ +.* ago  (.{18}) (.*)$", done.out)
    words = ["queued", "running (picked)", "queued", "running (picked)", "held (failed)"]
    assert [word.rstrip() for word, _ in told] == words
    assert "once more" in told[2][1]
    assert "RuntimeError: no luck" in told[4][1]
    assert "Traceback (most recent call last)" in done.out
    found = inside("show", "5", "--json", "--dsn", past).json
    assert (found["id"], found["status"], len(found["history"])) == (5, "failed", 2)


def test_show_knows_a_job_that_has_left_the_queue(past: str) -> None:
    done = inside("show", "7", "--dsn", past)
    assert "canceled" in done.out
    assert "by cli:ann@desk" in done.out
    assert "mistake" in done.out
    assert inside("show", "7", "--json", "--dsn", past).json["job"] is None


def test_an_unknown_id_is_exit_code_1(past: str) -> None:
    holdfast("show", "999999", dsn=past).complains(1, "job 999999")
    inside("show", "0", "--dsn", past).complains(2, "got 0")


def test_stats_count_the_queue_and_the_past(past: str) -> None:
    found = inside("stats", "--json", "--last", "1d", "--dsn", past).json
    assert found["last_seconds"] == 86400
    queue = {(row["entrypoint"], row["status"]): row["count"] for row in found["queue"]}
    assert queue == {("flaky", "failed"): 1, ("held", "failed"): 2, ("later", "queued"): 1}
    done = {(row["entrypoint"], row["status"]): row["count"] for row in found["statistics"]}
    assert done["good", "successful"] == 1
    table = inside("stats", "--dsn", past).out
    assert re.search(r"held +0 +0 +2\n", table)
    assert re.search(r"good +successful +1 ", table)


def test_a_running_worker_is_listed(installed: str) -> None:
    done = asyncio.run(_while_working(installed, lambda: holdfast("workers", dsn=installed)))
    [_, row] = done.out.splitlines()
    assert "1/7" in row
    assert row.split()[-1] == "blocking"
    [worker] = asyncio.run(
        _while_working(installed, lambda: holdfast("workers", "--json", dsn=installed))
    ).json
    assert (worker["pid"], worker["entrypoints"]) == (os.getpid(), ["blocking"])
    assert "no worker" in inside("workers", "--dsn", installed).out


async def _while_working(dsn: str, look: Callable[[], Done]) -> Done:
    """Look from outside while a worker has a job in hand and has said so."""
    async with Holdfast.connect(dsn) as hf, asyncio.timeout(30):
        go_on = asyncio.Event()

        @hf.entrypoint("blocking")
        async def blocking(job: Job) -> None:
            await go_on.wait()

        await hf.queries.enqueue("blocking")
        working = asyncio.create_task(hf.run(concurrency=7, heartbeat_timeout=timedelta(seconds=1)))
        while not working.done():
            if [worker for worker in await hf.queries.list_workers() if worker.running]:
                break
            await asyncio.sleep(0.02)
        seen = await asyncio.to_thread(look)
        go_on.set()
        hf.shutdown.set()
        await working
        return seen


def _on_a_terminal(*arguments: str, **variables: str) -> str:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        env=environment(TERM="xterm-256color", COLUMNS="80", **variables),
    ):
        os.close(theirs)
        octets = b""
        while True:
            try:
                octets += os.read(ours, 65536)
            except OSError:  # how a terminal says that its last writer has gone
                break
    os.close(ours)
    return octets.decode().replace("\r\n", "\n")


def test_colour_is_for_terminals_unless_it_is_unwanted(past: str) -> None:
    red = "\x1b[31mfailed (exception)"
    assert red in _on_a_terminal("log", HOLDFAST_DSN=past)
    assert red not in _on_a_terminal("log", HOLDFAST_DSN=past, NO_COLOR="1")
    assert "\x1b" not in holdfast("log", dsn=past).out


def test_tables_fit_a_terminal_and_are_not_folded_in_a_pipe(past: str) -> None:
    screen = re.sub(r"\x1b\[[0-9;]*m", "", _on_a_terminal("log", HOLDFAST_DSN=past))
    assert max(map(len, screen.splitlines())) <= 80
    assert "KeyError: 'lost'" in screen
    piped = holdfast("log", dsn=past).out.splitlines()
    assert len(piped) == 1 + 7
    assert max(map(len, piped)) > 100


def test_a_reader_that_leaves_early_is_no_error(past: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "failed", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(HOLDFAST_DSN=past),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 141


def test_what_a_terminal_would_obey_is_spelled_out() -> None:
    assert clean("plain ünïcode 👩‍🚀") == "plain ünïcode 👩‍🚀"
    assert clean("\x1b\x9b\u202e\u2028\x00\x7f\ud800\r\n") == (
        r"\x1b\x9b\u202e\u2028\x00\x7f\ud800\r\n"
    )
    assert clean("a\n\tb\x1b", keep_lines=True) == "a\n\tb\\x1b"


def test_durations_and_sizes_are_short() -> None:
    spans = [0.015, 1.25, 75, 600, 3600 * 30, 86400 * 3]
    assert [duration(span) for span in spans] == ["15ms", "1.2s", "1m 15s", "10m", "1d 6h", "3d"]
    assert [size(octets) for octets in (0, 1023, 1536, 5 * 1024**2)] == [
        *("0 B", "1023 B", "1.5 KB", "5.0 MB")
    ]


def test_an_explanation_breaks_between_words_and_a_command_never(installed: str) -> None:
    reason = "the relay answers 500 to everything, so ask somebody before it is resumed again"
    name = "a_long_name_of_an_entrypoint_" * 3
    assert inside("pause", name, "--reason", reason, "--dsn", installed).code == 0
    assert inside("enqueue", name, "--dsn", installed).code == 0
    with terminal() as screen, contextlib.suppress(SystemExit):
        main(["explain", "--entrypoint", name, "--dsn", installed])
    *sentence, command = screen.lines
    assert command == f"  try  holdfast resume {name}"
    assert max(map(len, sentence)) <= 80
    assert reason in " ".join(line.strip() for line in sentence)


def test_the_story_of_a_job_fits_a_terminal(past: str) -> None:
    with terminal() as screen, contextlib.suppress(SystemExit):
        main(["show", "5", "--dsn", past])
    [claim, _] = [line for line in screen.lines if "running (picked)" in line]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \S+Z  running \(picked\)   by \S+", claim)
