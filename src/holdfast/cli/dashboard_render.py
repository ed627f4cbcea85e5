"""A Snapshot as it looks on a terminal: a pure function, and nothing that a terminal would obey."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.cli.dashboard_snapshot import (
    MINUTES,
    EntrypointRow,
    FailureRow,
    RunningRow,
    ScheduleRow,
    Snapshot,
    WorkerRow,
)
from holdfast.cli.output import STYLES, duration, relative, shorten
from holdfast.lifecycle import Status

SPARKS = "▁▂▃▄▅▆▇█"
WIDE = 144
"""From this width on, tables stand side by side."""

PATIENCE = timedelta(seconds=15)
"""A worker not heard of for longer is called silent: with the usual lease it reports every 10 s."""

_ENTRYPOINTS, _WORKERS, _SCHEDULES = 14, 6, 6
_LONGEST_NAME, _LONGEST_ERROR = 28, 200
_SHRINKS = ("entrypoint", "worker", "error", "expression")
_LATE = timedelta(minutes=1)
_DIM = "dim"


def render(snapshot: Snapshot, width: int) -> RenderableType:
    """The whole dashboard."""
    entrypoints, running = entrypoint_table(snapshot), running_table(snapshot)
    workers, schedules = worker_table(snapshot), schedule_table(snapshot)
    failures = failure_table(snapshot)
    tables: list[RenderableType] = [entrypoints, running, failures, workers, schedules]
    if width >= WIDE:
        beside = Table.grid(padding=(0, 4, 0, 0))
        beside.add_row(entrypoints, workers)
        beside.add_row(running, schedules)
        tables = [beside, failures]
    return Group(headline(snapshot), throughput(snapshot), *tables)


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
        text.append(str(status), style=_DIM)
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
    return text


def sparkline(values: Sequence[float]) -> str:
    """One block a value; the highest is full."""
    most = max(values, default=0) or 1
    return "".join(SPARKS[round(value / most * (len(SPARKS) - 1))] for value in values)


def entrypoint_table(snapshot: Snapshot) -> RenderableType:
    counts = (Status.QUEUED, Status.PICKED, Status.FAILED, "waiting")
    table = _table("entrypoint", *counts, Status.SUCCESSFUL, Status.EXCEPTION, numbers=True)
    rows = sorted(snapshot.entrypoints, key=lambda row: (-row.queued - row.picked, row.name))
    for row in rows[:_ENTRYPOINTS]:
        table.add_row(*_entrypoint_cells(row, snapshot.at))
    return _titled(f"entrypoints now, and ended in {MINUTES} min", table, len(rows))


def _entrypoint_cells(row: EntrypointRow, at: datetime) -> Iterable[Text]:
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


def running_table(snapshot: Snapshot) -> RenderableType:
    table = _table("job", "entrypoint", "worker", "held for", "lease age")
    for row in snapshot.running:
        table.add_row(*_running_cells(row, snapshot.at))
    picked = sum(row.picked for row in snapshot.entrypoints)
    return _titled("running, longest first", table, picked)


def _running_cells(row: RunningRow, at: datetime) -> Iterable[Text]:
    age = max(at - row.heartbeat, timedelta(0))
    return (
        Text(str(row.id)),
        _name(row.entrypoint),
        _name(row.worker),
        Text(duration(max(at - row.claimed_at, timedelta(0)))),
        Text(f"{duration(age)} of {duration(row.lease)}", style=_alarm(age, row.lease * 0.9)),
    )


def failure_table(snapshot: Snapshot) -> RenderableType:
    table = _table("job", "entrypoint", "status", "when", "error")
    for row in snapshot.failures:
        table.add_row(*_failure_cells(row, snapshot.at))
    return _titled("latest failures", table, len(snapshot.failures))


def _failure_cells(row: FailureRow, at: datetime) -> Iterable[Text]:
    return (
        Text(str(row.id)),
        _name(row.entrypoint),
        Text(str(row.status), style=STYLES[row.status]),
        Text(relative(min(row.at, at), at), style=_DIM),
        _cut(row.error, _LONGEST_ERROR),
    )


def worker_table(snapshot: Snapshot, patience: timedelta = PATIENCE) -> RenderableType:
    table = _table("worker", "state", "running", "up", "seen")
    rows = sorted(snapshot.workers, key=lambda row: row.heartbeat, reverse=True)
    for row in rows[:_WORKERS]:
        table.add_row(*_worker_cells(row, snapshot.at, patience))
    return _titled("workers", table, len(rows))


def _worker_cells(row: WorkerRow, at: datetime, patience: timedelta) -> Iterable[Text]:
    seen = max(at - row.heartbeat, timedelta(0))
    silent = seen > patience
    return (
        _name(row.id),
        Text("silent" if silent else shorten(row.state, 12), style="red" if silent else "green"),
        Text(f"{row.running}/{row.concurrency}"),
        Text(duration(max(row.heartbeat - row.started_at, timedelta(0)))),
        Text(f"{duration(seen)} ago", style="red" if silent else _DIM),
    )


def schedule_table(snapshot: Snapshot) -> RenderableType:
    table = _table("schedule", "expression", "next", "last")
    rows = sorted(snapshot.schedules, key=lambda row: (row.paused, row.next_run, row.name))
    for row in rows[:_SCHEDULES]:
        table.add_row(*_schedule_cells(row, snapshot.at))
    return _titled("schedules", table, len(rows))


def _schedule_cells(row: ScheduleRow, at: datetime) -> Iterable[Text]:
    upcoming = Text("paused", style="yellow") if row.paused else Text(relative(row.next_run, at))
    zone = "" if row.timezone == "UTC" else f" {row.timezone}"
    last = "never" if row.last_run is None else relative(row.last_run, at)
    return (
        _name(row.name),
        _cut(row.expression + zone, _LONGEST_NAME),
        upcoming,
        Text(last, style=_DIM),
    )


def _table(first: str, *columns: str, numbers: bool = False) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 1), header_style=_DIM)
    table.add_column(first, no_wrap=not numbers)
    for name in columns:
        # What may be cut says so in its cells; a number never is.
        fixed = numbers or name not in _SHRINKS
        table.add_column(name, no_wrap=fixed, justify="right" if numbers else "left")
    return table


def _titled(title: str, table: Table, total: int) -> RenderableType:
    """Under its title, with the number of rows that found no room."""
    heading = Text(title, style="bold cyan")
    if not table.row_count:
        return Padding(heading.append("  none", style=_DIM), (1, 0, 0, 0))
    parts: list[RenderableType] = [heading, table]
    if total > table.row_count:
        parts.append(Text(f"and {total - table.row_count:,} more", style=_DIM))
    return Padding(Group(*parts), (1, 0, 0, 0))


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
