"""Asks before something is lost."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from holdfast.cli.command import FAILED, say
from holdfast.cli.output import clean
from holdfast.errors import InvalidInput

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str) -> None:
    """Return when the answer is yes; raise when it is no or there is none."""
    # Typer's own prompt writes to standard output, which may be a pipe that expects JSON.
    typer.echo(f"{clean(question)} [y/N] ", err=True, nl=False)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        typer.echo(err=True)
        raise InvalidInput("nobody answered, so nothing was changed; pass --yes")
    if answer.strip().lower() not in ("y", "yes"):
        say("nothing was changed")
        raise typer.Exit(FAILED)
