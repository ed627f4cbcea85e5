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
from holdfast.cli.dashboard_failures import failure_screen, render_failures
from holdfast.cli.dashboard_render import headline, render, tables, throughput
from holdfast.cli.output import console, print_json, shorten
from holdfast.errors import DatabaseError
from holdfast.monitor.snapshot import Snapshot, collect

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
            "holdfast dashboard --embedded",
            "holdfast dashboard --failures",
            "holdfast dashboard --once --json | jq .workers",
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
    failures: Annotated[
        bool, typer.Option("--failures", help="Show the latest failures with their tracebacks.")
    ] = False,
) -> None:
    """Watch the queue: sizes, throughput, running jobs, failures, workers, schedules.

    It refreshes in place until q or Ctrl-C; f switches to the tracebacks of the latest failures.
    Where the output is not a terminal it prints once.
    """
    options = options_of(ctx)
    if as_json or once or not sys.stdout.isatty():
        snapshot = run_async(lambda: _look(options, tracebacks=as_json or failures))
        if as_json:
            print_json(asdict(snapshot))
        else:
            print_once(snapshot, failures=failures)
        return
    try:
        run_async(lambda: _watch(options, interval, failures=failures))
    except KeyboardInterrupt:
        # Ctrl-C is how this view is meant to be left.
        return


async def _look(options: Options, *, tracebacks: bool) -> Snapshot:
    async with open_holdfast(options) as hf:
        return await collect(hf, tracebacks=tracebacks)


def print_once(snapshot: Snapshot, *, failures: bool = False) -> None:
    screen = console()
    width = screen.width if screen.is_terminal else _PIPE_WIDTH
    look = render_failures(snapshot) if failures else render(snapshot, width)
    if screen.is_terminal:
        screen.print(look)
        return
    with screen.capture() as printed:
        screen.print(look, width=width)
    # A terminal needs lines filled up to its width, a file does not.
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in printed.get().splitlines())


class View:
    """What the keys have chosen: the overview, or the traceback of one failure."""

    def __init__(self, quit_asked: asyncio.Event, *, failures: bool = False) -> None:
        self.quit_asked = quit_asked
        self.failures = failures
        self.chosen = 0
        self.pressed = asyncio.Event()

    def press(self, key: str) -> None:
        match key.lower():
            case "q" | "":
                self.quit_asked.set()
            case "f":
                self.failures = not self.failures
            case "n" | "j":
                self.chosen += 1
            case "p" | "k":
                self.chosen = max(0, self.chosen - 1)
        self.pressed.set()

    @property
    def keys(self) -> str:
        return "f back · n next · p previous" if self.failures else "f tracebacks"

    async def wait(self, seconds: float) -> bool:
        """Wait for a key. Return False when the time is up."""
        try:
            async with asyncio.timeout(seconds):
                await self.pressed.wait()
        except TimeoutError:
            return False
        self.pressed.clear()
        return True


async def _watch(options: Options, interval: float, *, failures: bool) -> None:
    screen = console()
    async with open_holdfast(options) as hf:
        snapshot = await collect(hf, tracebacks=failures)
        view = View(asyncio.Event(), failures=failures)
        with _keys(view), Live(console=screen, screen=True, auto_refresh=False) as live:
            await refresh(hf, live, snapshot, interval, view)


async def refresh(
    hf: Holdfast, live: Live, snapshot: Snapshot, interval: float, view: View
) -> None:
    """Until asked to quit. A database that is away is waited for, with the last look in view."""
    trouble, took = "", 0.0
    while not view.quit_asked.is_set():
        view.chosen = max(0, min(view.chosen, len(snapshot.failures) - 1))
        live.update(_screen(snapshot, live.console, interval, trouble, view), refresh=True)
        had = view.failures
        if await view.wait(max(interval, _SHARE * took)) and view.failures <= had:
            continue
        began = monotonic()
        try:
            snapshot, trouble = await collect(hf, snapshot, tracebacks=view.failures), ""
        except DatabaseError as error:
            trouble = str(error)
        took = monotonic() - began


def _screen(
    snapshot: Snapshot, screen: Console, interval: float, trouble: str, view: View
) -> RenderableType:
    """A whole screen: trouble at the top and the keys at the bottom, whatever its height."""
    head = [headline(snapshot), throughput(snapshot)]
    if trouble:
        told = f"no answer, this is the last look: {shorten(trouble, _LONGEST_TROUBLE)}"
        head.insert(0, Text(told, style="bold red"))
    above = len(screen.render_lines(Group(*head), pad=False))
    room = screen.height - above - 1
    if view.failures:
        body = Group(*head, *failure_screen(snapshot, view.chosen, room))
    else:
        body = Group(*head, *tables(snapshot, screen.width, room))
    keys = Text(f"q ends · {view.keys} · every {interval:g} s", style="dim", no_wrap=True)
    whole = Layout()
    whole.split_column(Layout(body), Layout(keys, size=1))
    return whole


@contextmanager
def _keys(view: View) -> Iterator[None]:
    """Give the view what is typed; the terminal is put back as it was."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read() -> None:
        view.press(sys.stdin.read(1))

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
