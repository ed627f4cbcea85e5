"""`holdfast demo`: real jobs on a real PostgreSQL, real failures, and a ledger at the end."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.command import FAILED, App, example
from holdfast.cli.connect import options_of, run_async
from holdfast.cli.output import line
from holdfast.errors import InvalidInput

__all__ = ["DIRECTORY", "register"]

DIRECTORY = ".holdfast-demo"


def register(app: App) -> None:
    app.command(
        name="demo",
        rich_help_panel="Set up",
        epilog=example("holdfast demo", "holdfast demo --seconds 20 --dir ./my-demo --keep"),
    )(demo)


def demo(
    ctx: typer.Context,
    seconds: Annotated[
        float, typer.Option(min=5, max=3600, help="How long the acts take, roughly.")
    ] = 45,
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where its PostgreSQL keeps the data.")
    ] = Path(DIRECTORY),
    keep: Annotated[
        bool, typer.Option("--keep/--fresh", help="Keep the jobs of earlier runs in DIR.")
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Serve the web page while the story runs, and open it.")
    ] = False,
) -> None:
    """Watch real jobs on a PostgreSQL of its own: workers die, nothing is lost.

    It needs no database and no set-up, runs by itself in about a minute, and ends with a ledger
    that accounts for every job.
    """
    if (given := options_of(ctx).source) in ("--dsn", "--embedded"):
        raise InvalidInput(
            f"the demo runs on a PostgreSQL of its own, not on that of {given}; "
            f"name the folder for it with --dir"
        )
    # Here, because every other command starts faster without it.
    from holdfast.demo.directory import occupied

    with occupied(directory):
        try:
            balanced = run_async(lambda: _play(directory.resolve(), seconds, keep, web))
        except (KeyboardInterrupt, asyncio.CancelledError):
            line("The demo was interrupted; its workers and its server are stopped.")
            raise KeyboardInterrupt from None
    if not balanced:
        raise typer.Exit(FAILED)


async def _play(directory: Path, seconds: float, keep: bool, web: bool) -> bool:
    from holdfast.cli.demo.story import play
    from holdfast.cli.demo.view import view

    this = asyncio.current_task()
    if this is not None:
        # Ended from outside it stops its workers and its server, as it does on Ctrl-C.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    try:
        return await play(directory, seconds=seconds, keep=keep, view=view(), web=web)
    except BaseExceptionGroup as group:
        raise _cause(group) from None


def _cause(error: BaseException) -> BaseException:
    """Return the first error in the groups of the tasks that it went through."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
