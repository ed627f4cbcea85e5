"""How the demo looks: a live block under a running commentary, or plain lines for a pipe."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from time import monotonic
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast.cli.dashboard_render import (
    entrypoint_table,
    headline,
    throughput,
    worker_table,
)
from holdfast.cli.output import clean, console, line
from holdfast.demo.handlers import LEASE
from holdfast.monitor.snapshot import Snapshot

_PLAIN_INTERVAL = 5.0


class View(Protocol):
    """The output of the demo."""

    def shown(self) -> AbstractContextManager[Any]: ...

    def say(self, text: str) -> None:
        """One line of the commentary."""
        ...

    def show(self, snapshot: Snapshot, done: float, act: str) -> None:
        """The state of the queue now; `done` goes from 0 to 1."""
        ...


def view() -> View:
    """The one that fits standard output."""
    screen = console()
    return LiveView(screen) if screen.is_terminal and not screen.is_dumb_terminal else PlainView()


class PlainView:
    """Lines that a log file can keep."""

    def __init__(self) -> None:
        self._began = monotonic()
        self._last = monotonic()

    def shown(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def say(self, text: str) -> None:
        line(f"{_clock(self._began)}  {clean(text)}")
        sys.stdout.flush()

    def show(self, snapshot: Snapshot, done: float, act: str) -> None:
        if monotonic() - self._last < _PLAIN_INTERVAL:
            return
        self._last = monotonic()
        self.say(f"[{done:.0%} {act}] {headline_counts(snapshot)}")


class LiveView:
    """The commentary scrolls; the dashboard stays below it."""

    def __init__(self, screen: Console) -> None:
        self._began = monotonic()
        self._live = Live(console=screen, refresh_per_second=8, transient=True)

    def shown(self) -> AbstractContextManager[Any]:
        return self._live

    def say(self, text: str) -> None:
        row = Table.grid(padding=(0, 2, 0, 0))
        row.add_column(no_wrap=True, style="dim")
        row.add_column()
        row.add_row(_clock(self._began), Text(clean(text)))
        self._live.console.print(row)

    def show(self, snapshot: Snapshot, done: float, act: str) -> None:
        bar = Table.grid(padding=(0, 2, 0, 0))
        bar.add_row(ProgressBar(total=1, completed=done, width=40), Text(act, style="bold"))
        body = Group(
            bar,
            headline(snapshot, LEASE),
            throughput(snapshot),
            entrypoint_table(snapshot),
            worker_table(snapshot, LEASE),
        )
        self._live.update(Padding(body, (1, 0, 0, 0)))


def headline_counts(snapshot: Snapshot) -> str:
    rows = snapshot.entrypoints
    return (
        f"{sum(row.successful for row in rows):,} successful, "
        f"{sum(row.queued for row in rows):,} queued, {sum(row.picked for row in rows):,} picked, "
        f"{sum(row.failed for row in rows):,} held"
    )


def _clock(began: float) -> str:
    return f"{monotonic() - began:5.1f} s"
