"""Asks before something is lost."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.output import clean
from holdfast.errors import InvalidInput

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str) -> None:
    """Return when the answer is yes; raise when it is no or nobody answers."""
    try:
        agreed = typer.confirm(clean(question), err=True)
    except typer.Abort:
        typer.echo(err=True)
        raise InvalidInput("nobody answered, so nothing was changed; pass --yes") from None
    if not agreed:
        typer.echo("holdfast: nothing was changed", err=True)
        raise typer.Exit(1)
