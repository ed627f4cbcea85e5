"""`holdfast dashboard`: a queue at a glance, refreshed in place."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from time import monotonic
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.text import Text

from holdfast.app import Holdfast
from holdfast.cli.command import App, example
from holdfast.cli.connect import Options, open_holdfast, options_of, run_async
from holdfast.cli.dashboard_render import headline, render, tables, throughput
from holdfast.cli.dashboard_snapshot import Snapshot, collect
from holdfast.cli.output import console, print_json, shorten
from holdfast.errors import DatabaseError

__all__ = ["Snapshot", "collect", "register", "render"]

_SHARE = 5
"""A look never takes more than this part of the time: counting a long queue is real work."""

_PIPE_WIDTH = 120
_LONGEST_TROUBLE = 200


def register(app: App) -> None:
    app.command(
        name="dashboard",
        rich_help_panel="Look",
        epilog=example(
            "holdfast dashboard --embedded", "holdfast dashboard --once --json | jq .workers"
        ),
    )(dashboard)


def dashboard(
    ctx: typer.Context,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", "-i", min=0.2, metavar="SECONDS", help="Time between two looks."
        ),
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one look as JSON.")] = False,
) -> None:
    """Watch the queue: sizes, throughput, running jobs, failures, workers, schedules.

    It refreshes in place until q or Ctrl-C. Where the output is not a terminal it prints once.
    """
    options = options_of(ctx)
    if as_json or once or not sys.stdout.isatty():
        snapshot = run_async(lambda: _look(options))
        if as_json:
            print_json(asdict(snapshot))
        else:
            print_once(snapshot)
        return
    try:
        run_async(lambda: _watch(options, interval))
    except KeyboardInterrupt:
        # Ctrl-C is how this view is meant to be left.
        return


async def _look(options: Options) -> Snapshot:
    async with open_holdfast(options) as hf:
        return await collect(hf)


def print_once(snapshot: Snapshot) -> None:
    screen = console()
    if screen.is_terminal:
        screen.print(render(snapshot, screen.width))
        return
    with screen.capture() as printed:
        screen.print(render(snapshot, _PIPE_WIDTH), width=_PIPE_WIDTH)
    # A terminal needs lines filled up to its width, a file does not.
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in printed.get().splitlines())


async def _watch(options: Options, interval: float) -> None:
    screen = console()
    async with open_holdfast(options) as hf:
        snapshot = await collect(hf)
        with _keys() as quit_asked, Live(console=screen, screen=True, auto_refresh=False) as live:
            await refresh(hf, live, snapshot, interval, quit_asked)


async def refresh(
    hf: Holdfast, live: Live, snapshot: Snapshot, interval: float, quit_asked: asyncio.Event
) -> None:
    """Until asked to quit. A database that is away is waited for, with the last look in view."""
    trouble, took = "", 0.0
    while not quit_asked.is_set():
        live.update(_screen(snapshot, live.console, interval, trouble), refresh=True)
        try:
            async with asyncio.timeout(max(interval, _SHARE * took)):
                await quit_asked.wait()
        except TimeoutError:
            began = monotonic()
            try:
                snapshot, trouble = await collect(hf, snapshot), ""
            except DatabaseError as error:
                trouble = str(error)
            took = monotonic() - began


def _screen(snapshot: Snapshot, screen: Console, interval: float, trouble: str) -> RenderableType:
    """A whole screen: trouble at the top and the keys at the bottom, whatever its height."""
    head = [headline(snapshot), throughput(snapshot)]
    if trouble:
        told = f"no answer, this is the last look: {shorten(trouble, _LONGEST_TROUBLE)}"
        head.insert(0, Text(told, style="bold red"))
    above = len(screen.render_lines(Group(*head), pad=False))
    body = Group(*head, *tables(snapshot, screen.width, screen.height - above - 1))
    whole = Layout()
    whole.split_column(
        Layout(body), Layout(Text(f"q ends · every {interval:g} s", style="dim"), size=1)
    )
    return whole


@contextmanager
def _keys() -> Iterator[asyncio.Event]:
    """An event that is set when q is typed; the terminal is put back as it was."""
    asked = asyncio.Event()
    if not sys.stdin.isatty():
        yield asked
        return
    import termios
    import tty

    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read() -> None:
        if sys.stdin.read(1) in ("q", "Q", ""):
            asked.set()

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield asked
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
