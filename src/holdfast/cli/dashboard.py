"""`holdfast dashboard`: a queue at a glance, refreshed in place."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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
from holdfast.cli.dashboard_acts import grant
from holdfast.cli.dashboard_failures import failure_screen, render_failures
from holdfast.cli.dashboard_job import job_screen
from holdfast.cli.dashboard_render import head, render, tables
from holdfast.cli.dashboard_view import View
from holdfast.cli.output import console, print_json, shorten
from holdfast.cli.show import look_at_job
from holdfast.errors import DatabaseError, JobNotFound
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

    It refreshes in place until q or Ctrl-C. Keys: f shows the tracebacks of failures, / filters,
    o opens a job, e explains, r requeues a held job, p pauses or resumes an entrypoint. Where the
    output is not a terminal it prints once. "Running" is the status picked, "held" is failed.
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
        live.update(_screen(snapshot, live.console, interval, trouble, view), refresh=True)
        had = view.failures
        by_key = await view.wait(max(interval, _SHARE * took))
        if by_key and view.wish is None and view.failures <= had:
            continue
        began = monotonic()
        try:
            snapshot, trouble = await _look_again(hf, snapshot, view), ""
        except DatabaseError as error:
            trouble = str(error)
        took = monotonic() - began


async def _look_again(hf: Holdfast, before: Snapshot, view: View) -> Snapshot:
    wished = view.wish is not None
    await grant(hf, view)
    if view.job is not None and not wished:
        with suppress(JobNotFound):
            view.opened(await look_at_job(hf, view.job.id))
    return await collect(hf, before, tracebacks=view.failures)


def _screen(
    snapshot: Snapshot, screen: Console, interval: float, trouble: str, view: View
) -> RenderableType:
    """A whole screen: trouble at the top and the keys at the bottom, whatever its height."""
    seen = view.seen(snapshot)
    above = head(seen)
    if view.filter:
        above.append(Text(f"only entrypoints with {shorten(view.filter)!r}", style="yellow"))
    if trouble:
        told = f"no answer, this is the last look: {shorten(trouble, _LONGEST_TROUBLE)}"
        above.insert(0, Text(told, style="bold red"))
    if view.note:
        above.append(Text(shorten(view.note, _LONGEST_TROUBLE), style="bold"))
    room = screen.height - len(screen.render_lines(Group(*above), pad=False)) - 1
    whole = Layout()
    whole.split_column(
        Layout(Group(*above, *_body(seen, screen.width, room, view))),
        Layout(_last_line(view, screen.width, interval), size=1),
    )
    return whole


def _body(snapshot: Snapshot, width: int, room: int, view: View) -> Sequence[RenderableType]:
    if view.job is not None:
        return [Text(), *job_screen(view.job, width, room - 1)]
    if view.failures:
        return failure_screen(snapshot, view.chosen, room)
    return tables(snapshot, width, room)


def _last_line(view: View, width: int, interval: float) -> Text:
    if view.asking is not None:
        return Text(view.keys, no_wrap=True, overflow="ellipsis")
    every = f" · every {interval:g} s"
    words = view.keys if len(view.keys) + len(every) > width else view.keys + every
    return Text(words, style="dim", no_wrap=True)


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
        # An arrow or another key of several bytes is none of ours.
        keys = os.read(descriptor, 1024).decode(errors="ignore")
        if len(keys) > 1 and keys.startswith("\x1b"):
            return
        for key in keys or [""]:
            view.press(key)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
