"""Hands over to the fault harness, which is in the source tree and not in the package."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.command import App, example
from holdfast.errors import InvalidInput

_HARNESS = "chaos"


def register(app: App) -> None:
    app.command(
        rich_help_panel="Set up",
        context_settings={"ignore_unknown_options": True},
        epilog=example("holdfast chaos run --profile quick", "holdfast chaos -- run --help"),
    )(chaos)


def chaos(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND [OPTIONS]", help="The harness's own; without any it names them."
        ),
    ] = None,
) -> None:
    """Break things and check that nothing was lost, in a checkout of Holdfast's source tree.

    It makes servers of its own, so that no connection has to be given.
    """
    if not Path(_HARNESS, "__main__.py").is_file():
        raise InvalidInput(
            f"no fault harness in {Path.cwd()}: it is part of Holdfast's source tree, not of the "
            f"package; go to a checkout of the sources and run `make chaos` there"
        )
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", _HARNESS, *(words or ())])  # noqa: S606
