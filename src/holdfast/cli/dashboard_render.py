"""A Snapshot as it looks on a terminal: a pure function, and nothing that a terminal would obey."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.cli.output import STYLES, coloured, duration, fit, progress_bar, relative, shorten
from holdfast.lifecycle import SPOKEN, Status
from holdfast.monitor.snapshot import (
    MINUTES,
    EntrypointRow,
    FailureRow,
    RunningRow,
    ScheduleRow,
    Snapshot,
    WorkerRow,
)

SPARKS = "▁▂▃▄▅▆▇█"
_BURST = 4
"""A value of more than this many times the median of the others is drawn as high as that."""
WIDE = 144
"""From this width on, tables stand side by side."""

PATIENCE = timedelta(seconds=15)
"""A worker not heard of for longer is called silent: with the usual lease it reports every 10 s."""

_ENTRYPOINTS, _WORKERS, _SCHEDULES = 14, 6, 6
_LONGEST_NAME, _LONGEST_ERROR = 28, 200
_SHRINKS = ("entrypoint", "worker", "schedule", "error", "expression")
_LATE = timedelta(minutes=1)
_DIM = "dim"


def render(snapshot: Snapshot, width: int) -> RenderableType:
    """The whole dashboard."""
    return Group(*head(snapshot), *tables(snapshot, width))


def head(snapshot: Snapshot) -> list[Text]:
    """The counts, the throughput and the pauses above the tables."""
    parts = [headline(snapshot), throughput(snapshot)]
    if snapshot.pauses:
        words = ", ".join(
            f"{shorten(each.name, _LONGEST_NAME) or 'everything'} "
            f"(by {shorten(each.actor or 'unknown', _LONGEST_NAME)}: {shorten(each.reason, 40)})"
            for each in snapshot.pauses
        )
        text = Text(f"paused: {words}", style="yellow", no_wrap=True, overflow="ellipsis")
        parts.append(text)
    return parts


def tables(snapshot: Snapshot, width: int, room: int | None = None) -> list[RenderableType]:
    """The sections, in that many lines if there is a limit: first the blank lines go, then rows.

    A section never loses its title, its headings and its first row.
    """
    entrypoints, running = entrypoint_table(snapshot), running_table(snapshot)
    workers, schedules = worker_table(snapshot), schedule_table(snapshot)
    failures = failure_table(snapshot)
    wide = width >= WIDE
    bands = [[entrypoints], [running], [failures], [workers], [schedules]]
    if wide:
        bands = [[entrypoints, workers], [running, schedules], [failures]]
    wanted = [max(len(section.rows) for section in band) for band in bands]
    headings = sum(2 if rows else 1 for rows in wanted)
    spaced = room is None or len(bands) + headings + sum(wanted) <= room
    given = wanted if room is None else fit(wanted, [1] * len(bands), room - headings)
    drawn = [
        [section.draw(rows, spaced=spaced) for section in band]
        for band, rows in zip(bands, given, strict=True)
    ]
    if not wide:
        return [section for [section] in drawn]
    *pairs, last = drawn
    beside = Table.grid(padding=(0, 4, 0, 0))
    for pair in pairs:
        beside.add_row(*pair)
    return [beside, *last]


@dataclass(frozen=True, slots=True)
class Section:
    """A table under its title; it can be drawn with fewer rows than it has."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Text]]
    total: int
    """How many there are, shown or not."""
    numbers: bool = False

    def __rich__(self) -> RenderableType:
        return self.draw(len(self.rows))

    def draw(self, most: int, *, spaced: bool = True, first: int = 0) -> RenderableType:
        shown = self.rows[first : first + most]
        parts: list[RenderableType] = [self._heading(len(shown))]
        if shown:
            parts.append(self._table(shown))
        return Padding(Group(*parts), (1 if spaced else 0, 0, 0, 0))

    def _heading(self, shown: int) -> Text:
        heading = Text(self.title, style="bold cyan")
        if not shown:
            heading.append("  none", style=_DIM)
        elif self.total > shown:
            heading.append(f"  … and {self.total - shown:,} more", style=_DIM)
        return heading

    def _table(self, rows: Sequence[Sequence[Text]]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 1), header_style=_DIM)
        for n, name in enumerate(self.columns):
            # Columns that may shrink show where they were cut. Numbers are never cut.
            side: Literal["left", "right"] = "right" if self.numbers and n else "left"
            table.add_column(name, no_wrap=name not in _SHRINKS, justify=side)
        for cells in rows:
            table.add_row(*cells)
        return table


def headline(snapshot: Snapshot, patience: timedelta = PATIENCE) -> Text:
    totals = (
        (sum(row.queued for row in snapshot.entrypoints), Status.QUEUED),
        (sum(row.picked for row in snapshot.entrypoints), Status.PICKED),
        (sum(row.failed for row in snapshot.entrypoints), Status.FAILED),
    )
    text = Text.assemble(("Holdfast", "bold"))
    text.append(f" {snapshot.at.astimezone(UTC):%H:%M:%SZ}", style=_DIM)
    for count, status in totals:
        text.append(f"  {count:,} ", style=STYLES[status] if count else _DIM)
        text.append(SPOKEN[status], style=_DIM)
    silent = sum(snapshot.at - row.heartbeat > patience for row in snapshot.workers)
    text.append(f"  {_count(len(snapshot.workers) - silent, 'worker')}", style=_DIM)
    if silent:
        text.append(f", {silent} silent", style="red")
    return text


def throughput(snapshot: Snapshot) -> Text:
    """Two sparklines: by the minute from the log, and by the look while this view is open."""
    text = Text.assemble((f"last {MINUTES} min ", _DIM))
    text.append(sparkline(snapshot.minutes), style="green")
    text.append(f" {sum(snapshot.minutes):,} ended", style=_DIM)
    if snapshot.rates:
        text.append("\nnow         ", style=_DIM)
        text.append(sparkline(snapshot.rates), style="green")
        text.append(f" {snapshot.rates[-1]:,.0f}/s", style="bold green")
    if snapshot.behind:
        since = f"\ncounts lack jobs since {snapshot.behind.astimezone(UTC):%H:%M:%SZ}"
        text.append(f"{since}: an open transaction holds them back", style="yellow")
    return text


def sparkline(values: Sequence[float]) -> str:
    """One block a value. The highest is full, and one burst does not flatten the others."""
    some = sorted(value for value in values if value > 0)
    if not some:
        return SPARKS[0] * len(values)
    most = min(some[-1], _BURST * some[len(some) // 2])
    return "".join(_spark(value / most) for value in values)


def _spark(share: float) -> str:
    """Something is more than nothing, however little it is."""
    return SPARKS[max(share > 0, round(min(share, 1.0) * (len(SPARKS) - 1)))]


def entrypoint_table(snapshot: Snapshot) -> Section:
    counts = (*(SPOKEN[each] for each in (Status.QUEUED, Status.PICKED, Status.FAILED)), "waiting")
    rows = sorted(snapshot.entrypoints, key=lambda row: (-row.queued - row.picked, row.name))
    return Section(
        f"entrypoints now, and ended in {MINUTES} min",
        ("entrypoint", *counts, SPOKEN[Status.SUCCESSFUL], SPOKEN[Status.EXCEPTION]),
        [_entrypoint_cells(row, snapshot.at) for row in rows[:_ENTRYPOINTS]],
        total=len(rows),
        numbers=True,
    )


def _entrypoint_cells(row: EntrypointRow, at: datetime) -> Sequence[Text]:
    waiting = at - row.waiting_since if row.waiting_since else None
    return (
        _name(row.name),
        _number(row.queued, Status.QUEUED),
        _number(row.picked, Status.PICKED),
        _number(row.failed, Status.FAILED),
        Text("" if waiting is None else duration(waiting), style=_alarm(waiting, _LATE)),
        _number(row.successful, Status.SUCCESSFUL),
        _number(row.exception, Status.EXCEPTION),
    )


def running_table(snapshot: Snapshot) -> Section:
    said = any(row.progress is not None for row in snapshot.running)
    return Section(
        "running, longest first",
        ("job", "entrypoint", "worker", "runs for", "lease age", *(["progress"] if said else [])),
        [_running_cells(row, snapshot.at)[: 6 if said else 5] for row in snapshot.running],
        total=sum(row.picked for row in snapshot.entrypoints),
    )


def _running_cells(row: RunningRow, at: datetime) -> Sequence[Text]:
    age = max(at - row.heartbeat, timedelta(0))
    return (
        Text(str(row.id)),
        _name(row.entrypoint),
        _name(row.worker),
        Text(duration(max(at - row.claimed_at, timedelta(0)))),
        Text(f"{duration(age)} of {duration(row.lease)}", style=_alarm(age, row.lease * 0.9)),
        Text("" if row.progress is None else progress_bar(row.progress), style="blue"),
    )


def failure_table(snapshot: Snapshot, chosen: int | None = None) -> Section:
    """The row of the chosen failure stands out."""
    rows = [_failure_cells(row, snapshot.at) for row in snapshot.failures]
    if chosen is not None:
        for n, (job, *_) in enumerate(rows):
            job.plain = f"{'>' if n == chosen else ' '} {job.plain}"
            job.stylize("bold" if n == chosen else "")
    return Section(
        "latest failures",
        ("job" if chosen is None else "  job", "entrypoint", "status", "when", "error"),
        rows,
        total=len(snapshot.failures),
    )


def _failure_cells(row: FailureRow, at: datetime) -> Sequence[Text]:
    return (
        Text(str(row.id)),
        _name(row.entrypoint),
        coloured(row.status),
        Text(relative(min(row.at, at), at), style=_DIM),
        _cut(row.error, _LONGEST_ERROR),
    )


def worker_table(snapshot: Snapshot, patience: timedelta = PATIENCE) -> Section:
    silent = {row.id for row in snapshot.workers if snapshot.at - row.heartbeat > patience}
    newest = sorted(snapshot.workers, key=lambda row: row.heartbeat, reverse=True)
    # A small screen shows the first few, and silent ones are why people look.
    rows = sorted(newest, key=lambda row: row.id not in silent)
    return Section(
        "workers",
        ("worker", "state", "running", "up", "seen"),
        [_worker_cells(row, snapshot.at, patience) for row in rows[:_WORKERS]],
        total=len(rows),
    )


def _worker_cells(row: WorkerRow, at: datetime, patience: timedelta) -> Sequence[Text]:
    seen = max(at - row.heartbeat, timedelta(0))
    silent = seen > patience
    return (
        _name(row.id),
        Text("silent" if silent else shorten(row.state, 12), style="red" if silent else "green"),
        Text(f"{row.running}/{row.concurrency}"),
        Text(duration(max(row.heartbeat - row.started_at, timedelta(0)))),
        Text(f"{duration(seen)} ago", style="red" if silent else _DIM),
    )


def schedule_table(snapshot: Snapshot) -> Section:
    rows = sorted(snapshot.schedules, key=lambda row: (row.paused, row.next_run, row.name))
    return Section(
        "schedules",
        ("schedule", "expression", "next", "last"),
        [_schedule_cells(row, snapshot.at) for row in rows[:_SCHEDULES]],
        total=len(rows),
    )


def _schedule_cells(row: ScheduleRow, at: datetime) -> Sequence[Text]:
    upcoming = Text("paused", style="yellow") if row.paused else Text(relative(row.next_run, at))
    zone = "" if row.timezone == "UTC" else f" {row.timezone}"
    last = "never" if row.last_run is None else relative(row.last_run, at)
    return (
        _name(row.name),
        _cut(row.expression + zone, _LONGEST_NAME),
        upcoming,
        Text(last, style=_DIM),
    )


def _name(text: str) -> Text:
    return _cut(text, _LONGEST_NAME)


def _cut(text: str, longest: int) -> Text:
    return Text(shorten(text, longest), no_wrap=True, overflow="ellipsis")


def _number(count: int, status: Status) -> Text:
    return Text(f"{count:,}", style=STYLES[status] if count else _DIM)


def _alarm(age: timedelta | None, most: timedelta) -> str:
    return "red" if age is not None and age > most else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
