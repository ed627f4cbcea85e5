"""The dashboard: what it shows of a known state, what it never lets through, how it is left."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import unicodedata
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from rich.live import Live

from devtools.dashboard_picture import draw, scene
from holdfast import Holdfast, Job, NewJob, Status
from holdfast.cli.dashboard import print_once, refresh
from holdfast.cli.dashboard_render import WIDE, render, sparkline
from holdfast.cli.dashboard_view import View
from holdfast.models import ClaimRule, JobId
from holdfast.monitor.snapshot import (
    EntrypointRow,
    FailureRow,
    RunningRow,
    ScheduleRow,
    Snapshot,
    WorkerRow,
    collect,
)
from holdfast.settings import Names
from holdfast.stores.postgres.drivers import connect
from holdfast.stores.postgres.render import statements
from tests.cli.command_line import inside
from tests.postgres import tables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.cli.command_line import Done
    from tests.servers import Database

AT = datetime(2026, 3, 9, 10, 30, 12, tzinfo=UTC)

PICTURE = """\
Holdfast 10:30:12Z  1,303 queued  342 running  4 held  2 workers, 1 silent
last 30 min ▄▄▄▄▅▅▆▇▆▆▅▅▅▅▅▄▂▂▄███▇▆▆▆▅▆▆▂ 53,378 ended
now         ▅▅▅▅▅▄▅▆▆▆▆▅▂▂▂▇█▇▇▆▆▅▅▆▅▅▅▆▆▆ 41/s
paused: nightly_report (by cli:mara@ops: warehouse is down)

entrypoints now, and ended in 30 min
entrypoint      queued  running  held  waiting  successful  failed
send_email       1,204      312     0     1.4s      48,211       3
resize_image        86       24     0    300ms       9,240       0
import_file         12        2     3   1m 15s         418       1
charge_card          0        4     1                2,077       0
nightly_report       1        0     0                    0       0

running, longest first  … and 338 more
job    entrypoint    worker           runs for  lease age     progress
41877  import_file   web-1:4120:9f3c  48s       9.1s of 30s   ██████░░░░ 62%
42019  import_file   web-2:3991:07ab  12s       2.6s of 30s   ██░░░░░░░░ 18%
42103  resize_image  web-1:4120:9f3c  1.9s      1.9s of 30s
42110  charge_card   web-2:3991:07ab  210ms     210ms of 30s

latest failures
job    entrypoint   status              when         error
41902  import_file  held (failed)       31s ago      stale claim recovered
40018  send_email   failed (exception)  3m 10s ago   SMTPRecipientsRefused: 550
39554  charge_card  held (failed)       10m 40s ago  CardError: expired card

workers
worker           state    running  up       seen
web-3:1207:55e0  silent   2/500    59m 19s  41s ago
web-1:4120:9f3c  running  171/500  1d 2h    4.0s ago
web-2:3991:07ab  running  169/500  1d 2h    7.0s ago

schedules
schedule        expression               next        last
clean_sessions  */5 * * * *              in 4m 48s   12s ago
nightly_report  0 2 * * * Europe/Madrid  in 14h 29m  9h 30m ago
"""


def as_text(snapshot: Snapshot, width: int = 84) -> str:
    screen = Console(width=width, file=io.StringIO(), color_system=None)
    screen.print(render(snapshot, width))
    assert isinstance(screen.file, io.StringIO)
    return "\n".join(line.rstrip() for line in screen.file.getvalue().splitlines()) + "\n"


def test_a_known_state_looks_like_this() -> None:
    assert as_text(scene()) == PICTURE


def test_an_empty_queue_says_so_in_every_part() -> None:
    text = as_text(Snapshot(at=AT, minutes=(0,) * 30))
    assert text.count("none") == 5
    assert "0 queued  0 running  0 held  0 workers" in text


def test_a_wide_terminal_has_tables_side_by_side() -> None:
    lines = as_text(scene(), WIDE).splitlines()
    assert any(line.startswith("entrypoint ") and " worker " in line for line in lines)
    assert any(line.startswith("job ") and " schedule " in line for line in lines)
    assert len(lines) < len(PICTURE.splitlines())


@pytest.mark.parametrize("width", [20, 40, 60, 84, 110, WIDE, 300])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    assert max(len(line) for line in as_text(scene(), width).splitlines()) <= width


def test_numbers_are_never_cut_on_a_terminal_of_80() -> None:
    huge = replace(scene(), entrypoints=(EntrypointRow("x" * 60, 1_234_567, 500, 99_999),))
    row = next(line for line in as_text(huge, 80).splitlines() if line.startswith("xxx"))
    assert row.split()[1:4] == ["1,234,567", "500", "99,999"]


def test_what_a_terminal_would_obey_is_shown_and_not_sent() -> None:
    evil = "a\x1b[2J\x1b]0;title\x07\r\n\u202eb\x9bc[red]d"
    text = as_text(
        Snapshot(
            at=AT,
            entrypoints=(EntrypointRow(evil, 1, 1),),
            running=(RunningRow(JobId(1), evil, evil, AT, AT, timedelta(seconds=30)),),
            failures=(FailureRow(JobId(1), evil, Status.FAILED, evil, AT),),
            workers=(WorkerRow(evil, evil, 0, 1, AT, AT),),
            schedules=(ScheduleRow(evil, evil, evil, False, AT, None),),
        ),
        200,
    )
    obeyed = {letter for letter in text if unicodedata.category(letter) in ("Cc", "Cf")} - {"\n"}
    assert not obeyed
    assert r"a\x1b[2J\x1b]0;title\x07\r\n\u202eb\x9bc[red]d" in text


def test_rows_that_find_no_room_are_counted() -> None:
    many = tuple(EntrypointRow(f"entrypoint_{number:02}") for number in range(40))
    assert "and 26 more" in as_text(Snapshot(at=AT, entrypoints=many))


HOME = "\x1b[H"
TITLES = ("entrypoints now", "running", "latest failures", "workers", "schedules")


class Glass(io.StringIO):
    """Hands out each look as it comes to stand on it."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: asyncio.Queue[str] = asyncio.Queue()

    def write(self, text: str) -> int:
        look = text.rpartition(HOME)[2] if HOME in text else ""
        if look:
            self.looks.put_nowait(look)
        return super().write(text)


async def on_screen(
    snapshot: Snapshot, width: int = 80, height: int = 24, *, away: bool = False, keys: str = ""
) -> list[str]:
    """What stands on a terminal of that size, with the database there or away."""
    glass = Glass()
    screen = Console(
        width=width,
        height=height,
        file=glass,
        force_terminal=True,
        color_system=None,
        _environ={"TERM": "xterm-256color"},
    )
    nobody = Holdfast.connect("postgresql://nobody@127.0.0.1:1/nowhere")
    view = View(asyncio.Event(), failures=bool(keys))
    async with asyncio.timeout(30), nobody, asyncio.TaskGroup() as group:
        with Live(console=screen, screen=True, auto_refresh=False) as live:
            group.create_task(refresh(nobody, live, snapshot, 0 if away else 60, view))
            look = await glass.looks.get()
            for key in keys.strip():
                view.press(key)
                look = await glass.looks.get()
            if away:
                look = await glass.looks.get()
            view.press("q")
    return [line.rstrip() for line in look.splitlines()]


def busy(number: int) -> Snapshot:
    """That many of everything, each with a long name."""
    known, name, worker = scene(), "charge_card_through_stripe_eu1", "host-7f9c8d:12345:deadbeef"
    return replace(
        known,
        entrypoints=tuple(EntrypointRow(f"{n}_{name}", 1, 1) for n in range(number)),
        running=tuple(
            replace(known.running[0], id=JobId(n), entrypoint=name, worker=worker)
            for n in range(number)
        ),
        failures=tuple(replace(known.failures[0], entrypoint=name) for _ in range(number)),
        workers=tuple(replace(known.workers[0], id=worker) for _ in range(number)),
        schedules=tuple(replace(known.schedules[1], name=f"{n}_{name}") for n in range(number)),
    )


def sections(lines: list[str]) -> dict[str, list[str]]:
    """The lines of each section, where each stands below the one before."""
    places = {
        title: n for title in TITLES for n, line in enumerate(lines) if line.startswith(title)
    }
    assert list(places) == list(TITLES), lines
    ends = [*list(places.values())[1:], len(lines) - 1]
    return {
        title: [line for line in lines[place:end] if line]
        for (title, place), end in zip(places.items(), ends, strict=True)
    }


async def test_a_database_that_is_away_is_told_of_at_the_top_of_24_lines() -> None:
    lines = await on_screen(scene(), away=True)
    assert len(lines) == 24
    assert lines[0].startswith("no answer, this is the last look: ")
    assert lines[-1].startswith("q ends · f tracebacks · / filter · o open · e explain · p pause")
    assert all(len(section) >= 3 for section in sections(lines).values())


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("height", [24, 25, 30, 36, 50, 70])
async def test_every_section_keeps_its_first_rows_and_counts_the_others(
    height: int, away: bool
) -> None:
    lines = await on_screen(busy(12), height=height, away=away)
    assert len(lines) == height
    assert max(map(len, lines)) <= 80
    assert lines[-1].startswith("q ends")
    for title, (heading, columns, *rows) in sections(lines).items():
        assert columns.split()[0] in ("entrypoint", "job", "worker", "schedule"), title
        more = re.search(r"… and (\d+) more$", heading)
        assert len(rows) >= 1
        assert len(rows) + (int(more[1]) if more else 0) == 12, lines


async def test_what_has_room_is_shown_in_full() -> None:
    lines = await on_screen(scene(), 84, 37)
    assert "\n".join(lines[:36]) + "\n" == PICTURE
    closer = await on_screen(scene(), 84, 32)
    assert closer[:31] == [line for line in PICTURE.splitlines() if line]


async def test_a_wide_terminal_of_24_lines_shows_a_row_of_everything() -> None:
    lines = await on_screen(busy(12), WIDE)
    text = "\n".join(lines)
    assert len(lines) == 24
    assert all(title in text for title in TITLES)
    assert text.count("more") == 5
    assert lines[-1].endswith("o open · e explain · p pause · every 60 s")


@pytest.mark.parametrize("height", [3, 8, 16])
async def test_trouble_and_the_keys_are_seen_on_the_lowest_terminal(height: int) -> None:
    lines = await on_screen(busy(12), height=height, away=True)
    assert len(lines) == height
    assert lines[0].startswith("no answer")
    assert lines[-1].startswith("q ends")


FRAMES = "".join(
    f'  File "/srv/shop/step_{n}.py", line {n}, in step_{n}\n    await step_{n + 1}(order)\n'
    for n in range(20)
)
TRACEBACK = f"Traceback (most recent call last):\n{FRAMES}CardError: expired card\n"


def failing(number: int = 3, traceback: str | None = TRACEBACK) -> Snapshot:
    known = scene()
    rows = [replace(known.failures[n % 3], traceback=traceback) for n in range(number)]
    return replace(known, failures=tuple(rows))


async def test_the_traceback_of_a_failure_is_seen_on_24_lines() -> None:
    lines = await on_screen(failing(), keys=" ")
    assert len(lines) == 24
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "q ends · f back · n next · p previous · o open · r requeue · every 60 s"
    assert lines[-2] == "CardError: expired card"
    assert lines[-3] == "    await step_20(order)"
    [above] = [line for line in lines if "lines above" in line]
    shown = len(lines) - 1 - lines.index(above) - 1
    assert above == f"… {42 - shown} lines above; `holdfast show 41902` prints all"
    assert shown >= 10
    assert next(line for line in lines if line.startswith("> ")).split()[1] == "41902"


async def test_keys_choose_the_failure_whose_traceback_is_shown() -> None:
    lines = await on_screen(failing(), keys="nnnp")
    assert [line.split()[1] for line in lines if line.startswith("> ")] == ["40018"]
    assert any(line.startswith("job 40018  send_email  failed (exception)") for line in lines)


async def test_f_goes_back_to_the_overview() -> None:
    lines = await on_screen(failing(), height=36, width=84, keys="f")
    assert list(sections(lines)) == list(TITLES)


async def test_a_large_terminal_shows_a_whole_traceback() -> None:
    lines = await on_screen(failing(6), 120, 60, keys=" ")
    text = "\n".join(lines)
    assert TRACEBACK in text
    assert sum(line.startswith(("> ", "  4", "  3")) for line in lines[:12]) == 6


@pytest.mark.parametrize("height", [3, 8, 16])
async def test_the_lowest_terminal_shows_the_end_of_a_traceback_and_the_keys(height: int) -> None:
    lines = await on_screen(failing(6), height=height, keys="nnnnn")
    assert len(lines) == height
    assert lines[-1].startswith("q ends")
    if height > 8:
        assert lines[-2] == "CardError: expired card"


async def test_without_failures_the_view_says_so() -> None:
    lines = await on_screen(failing(0), keys=" ")
    assert "latest failures  none" in lines


async def test_a_failure_without_a_traceback_shows_its_error() -> None:
    lines = await on_screen(failing(1, traceback=None), keys=" ")
    assert "stale claim recovered" in lines
    assert any(line.startswith("No traceback") for line in lines)


def test_a_traceback_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_once(failing(1, "Traceback\n\x1b[2Jb\x07ad\n"), failures=True)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "Traceback\n\\x1b[2Jb\\x07ad\n" in shown


async def test_failures_are_printed_with_their_whole_tracebacks(pg18: Database) -> None:
    async with Holdfast.connect(pg18.dsn) as queue:
        await queue.install()

        @queue.entrypoint("held", on_failure="hold")
        async def held(job: object) -> None:
            raise ValueError("no price")

        @queue.entrypoint("gone")
        async def gone(job: object) -> None:
            raise KeyError("lost")

        await queue.queries.enqueue_many([NewJob("held"), NewJob("gone")])
        await queue.run(mode="drain")
        await look_at(queue, ended=2)
    done = await asyncio.to_thread(command, "--failures", "--dsn", pg18.dsn)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Traceback (most recent call last):") == 2
    assert "ValueError: no price" in done.stdout
    assert "KeyError: 'lost'" in done.stdout
    done = await asyncio.to_thread(command, "--json", "--dsn", pg18.dsn)
    rows = json.loads(done.stdout)["failures"]
    assert all("Traceback" in row["traceback"] for row in rows)
    assert len(rows) == 2


def test_the_sparkline_is_full_at_its_highest_value_and_flat_without_any() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([0, 4, 5, 4, 900]) == "▁▂▃▂█"
    assert sparkline([1, 100, 100]) == "▂██"
    assert sparkline([]) == ""


def test_the_picture_is_the_same_each_time_and_loads_nothing(tmp_path: Path) -> None:
    first, second = tmp_path / "one.svg", tmp_path / "two.svg"
    draw(first)
    draw(second)
    assert first.read_bytes() == second.read_bytes()
    assert "send_email" in first.read_text()
    assert "url(" not in first.read_text().replace("url(#", "")


@pytest.fixture(params=["memory", "postgres"])
async def hf(request: pytest.FixtureRequest) -> AsyncIterator[Holdfast]:
    if request.param == "memory":
        async with Holdfast.in_memory() as queue:
            yield queue
        return
    database: Database = request.getfixturevalue("pg18")
    async with Holdfast.connect(database.dsn) as queue:
        await queue.install()
        yield queue


LEASE = timedelta(seconds=30)


async def look_at(hf: Holdfast, ended: int, before: Snapshot | None = None) -> Snapshot:
    """A look in which so many have ended: a transaction of another test can delay the count."""
    async with asyncio.timeout(30):
        while True:
            snapshot = await collect(hf, before)
            if sum(snapshot.minutes) >= ended:
                return snapshot
            await asyncio.sleep(0.02)


async def test_a_look_finds_what_is_there(hf: Holdfast) -> None:
    @hf.entrypoint("fine")
    async def fine(job: object) -> None:
        """Ends well."""

    @hf.entrypoint("wrong", on_failure="hold")
    async def wrong(job: object) -> None:
        raise ValueError("no price")

    @hf.entrypoint("lost")
    async def lost(job: object) -> None:
        raise KeyError("lost")

    await hf.queries.enqueue_many([NewJob("fine")] * 3 + [NewJob("wrong"), NewJob("lost")])
    await hf.run(mode="drain")
    await hf.queries.enqueue_many([NewJob("open"), NewJob("open", execute_after=LEASE * 100)])
    await hf.queries.enqueue_many([NewJob("busy")])
    [leased] = await hf.store.leases.claim(
        [ClaimRule("busy", LEASE)], limit=9, worker="w", sweep=True
    )

    snapshot = await look_at(hf, ended=5)
    rows = {row.name: row for row in snapshot.entrypoints}
    assert rows["open"].queued == 2
    assert rows["open"].waiting_since is not None
    assert rows["open"].waiting_since <= snapshot.at
    assert (rows["busy"].picked, rows["busy"].waiting_since) == (1, None)
    assert (rows["fine"].successful, rows["lost"].exception, rows["wrong"].failed) == (3, 1, 1)
    assert [(row.id, row.worker, row.lease) for row in snapshot.running] == [
        (leased.id, "w", LEASE)
    ]
    assert {(row.entrypoint, row.status, row.error) for row in snapshot.failures} == {
        ("wrong", Status.FAILED, "ValueError: no price"),
        ("lost", Status.EXCEPTION, "KeyError: 'lost'"),
    }
    assert sum(snapshot.minutes) == 5


async def test_looks_in_a_row_make_a_rate(hf: Holdfast) -> None:
    @hf.entrypoint("fine")
    async def fine(job: object) -> None:
        """Ends well."""

    first = await collect(hf)
    assert first.rates == ()
    await hf.queries.enqueue_many([NewJob("fine")] * 7)
    await hf.run(mode="drain")
    hf.shutdown.clear()
    second = await look_at(hf, 7, first)
    seconds = (second.at - first.at).total_seconds()
    assert [round(rate * seconds) for rate in second.rates] == [7]
    third = await collect(hf, second)
    assert third.rates == (*second.rates, 0.0)


async def test_the_longest_running_come_first_and_the_oldest_due_counts(hf: Holdfast) -> None:
    rules = [ClaimRule("a", LEASE), ClaimRule("b", LEASE)]
    ids = []
    for entrypoint in ("b", "a", "b"):
        ids += await hf.queries.enqueue_many([NewJob(entrypoint)])
        await hf.store.leases.claim(rules, limit=1, worker="w", sweep=True)
    assert [job.id for job in await hf.queries.list_running_jobs()] == ids
    assert [job.id for job in await hf.queries.list_running_jobs(limit=2)] == ids[:2]
    assert await hf.queries.oldest_waiting() == {}

    now = await hf.queries.now()
    early, late = now - timedelta(minutes=9), now - timedelta(minutes=2)
    await hf.queries.enqueue_many(
        [
            NewJob("a", priority=5, execute_after=late),
            NewJob("a", priority=-5, execute_after=early),
            NewJob("b", execute_after=now + timedelta(hours=1)),
        ]
    )
    assert await hf.queries.oldest_waiting() == {"a": early}


async def test_the_log_can_be_asked_for_a_stretch_of_time_alone(hf: Holdfast) -> None:
    ids = await hf.queries.enqueue_many([NewJob("gone")])
    await hf.queries.delete_jobs([job_id for job_id in ids if job_id is not None])
    assert len(await hf.queries.queue_log(last=timedelta(minutes=1))) == 1
    assert await hf.queries.queue_log(last=timedelta(0)) == []


async def test_neither_running_nor_oldest_reads_the_backlog(pg: Database) -> None:
    """Their plans, with statistics taken while nothing was leased: indexes alone."""
    async with Holdfast.connect(pg.dsn) as queue:
        await queue.install()
        await queue.queries.enqueue_many([NewJob(f"e{number % 7}") for number in range(20_000)])
    driver = connect(pg.dsn)
    await driver.fetch("analyze holdfast", [])
    for name, values in (("oldest", [None]), ("list_running", [8])):
        text = statements(Names())[name].text
        rows = await driver.fetch(f"explain {text}", values)
        plan = "\n".join(row[0] for row in rows)
        assert "Seq Scan on holdfast j" not in plan, plan
    await driver.close()


def command(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "dashboard", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


async def installed(database: Database) -> None:
    async with Holdfast.connect(database.dsn) as queue:
        await queue.install()
        await queue.queries.enqueue("mail")


async def test_into_a_pipe_it_prints_once_without_control_codes(pg18: Database) -> None:
    await installed(pg18)
    done = await asyncio.to_thread(command, "--dsn", pg18.dsn)
    assert (done.returncode, done.stderr) == (0, "")
    assert "mail" in done.stdout
    assert "\x1b" not in done.stdout


async def test_a_script_gets_json(pg18: Database) -> None:
    await installed(pg18)
    done = await asyncio.to_thread(command, "--json", "--dsn", pg18.dsn)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(row["name"], row["queued"]) for row in found["entrypoints"]] == [("mail", 1)]
    assert datetime.fromisoformat(found["at"]).tzinfo is not None


def test_without_tables_it_is_one_line_and_an_exit_code(pg18: Database) -> None:
    done = command("--dsn", pg18.dsn)
    assert done.returncode == 4
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "holdfast install" in done.stderr


@pytest.mark.parametrize("leave", ["q", "ctrl-c"])
async def test_on_a_terminal_it_refreshes_until_it_is_left(pg18: Database, leave: str) -> None:
    await installed(pg18)
    terminal, inside = pty.openpty()
    process = subprocess.Popen(  # noqa: ASYNC220 - started, then watched from a thread
        [sys.executable, "-m", "holdfast", "dashboard", "-i", "0.2", "--dsn", pg18.dsn],
        stdin=inside,
        stdout=inside,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "50"},
    )
    os.close(inside)
    try:
        await asyncio.to_thread(read_until, terminal, "mail")
        async with Holdfast.connect(pg18.dsn) as queue:
            await queue.queries.enqueue("a_second_kind")
        await asyncio.to_thread(read_until, terminal, "a_second_kind")
        if leave == "q":
            os.write(terminal, b"q")
        else:
            process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, 30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.communicate()
        os.close(terminal)


async def test_f_shows_a_traceback_on_a_terminal_of_24_lines(pg18: Database) -> None:
    async with Holdfast.connect(pg18.dsn) as queue:
        await queue.install()

        @queue.entrypoint("held", on_failure="hold")
        async def held(job: object) -> None:
            raise ValueError("no price")

        await queue.queries.enqueue("held")
        await queue.run(mode="drain")
    terminal, inside = pty.openpty()
    process = subprocess.Popen(  # noqa: ASYNC220 - started, then watched from a thread
        [sys.executable, "-m", "holdfast", "dashboard", "-i", "60", "--dsn", pg18.dsn],
        stdin=inside,
        stdout=inside,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
    )
    os.close(inside)
    try:
        await asyncio.to_thread(read_until, terminal, "f tracebacks")
        os.write(terminal, b"f")
        await asyncio.to_thread(read_until, terminal, "Traceback (most recent call last)")
        os.write(terminal, b"f")
        await asyncio.to_thread(read_until, terminal, "entrypoints now")
        os.write(terminal, b"q")
        assert await asyncio.to_thread(process.wait, 30) == 0
    finally:
        process.kill()
        process.communicate()
        os.close(terminal)


def read_until(terminal: int, text: str) -> None:
    deadline, seen = time.monotonic() + 30, ""
    while text not in seen:
        assert time.monotonic() < deadline, seen
        seen += os.read(terminal, 65536).decode(errors="replace")


def test_a_transaction_that_stays_open_hides_no_failure(installed: str) -> None:
    """Rows of the log are counted when no transaction of the server is older than they are."""

    async def broken() -> tuple[Done, Done, Done]:
        async with Holdfast.connect(installed) as hf, tables.session(installed) as other:

            @hf.entrypoint("broken")
            async def handler(job: Job) -> None:
                raise KeyError("lost")

            async with other.transaction():
                await other.execute("select pg_current_xact_id()")
                await hf.queries.enqueue("broken")
                await hf.run(mode="drain")
                [shown, counted, logged] = [
                    await asyncio.to_thread(inside, *words, "--dsn", installed)
                    for words in (["dashboard", "--once"], ["stats", "--json"], ["log", "--json"])
                ]
        return shown, counted, logged

    shown, counted, logged = asyncio.run(broken())
    assert "KeyError: 'lost'" in shown.out
    assert "1 ended" in shown.out
    [statistic] = counted.json["statistics"]
    assert (statistic["status"], statistic["count"]) == ("exception", 1)
    assert counted.json["incomplete_since"] is None
    assert [row["status"] for row in logged.json] == ["exception"]


def test_counts_that_lack_jobs_say_since_when() -> None:
    text = as_text(replace(scene(), behind=AT))
    assert "counts lack jobs since 10:30:12Z" in text
