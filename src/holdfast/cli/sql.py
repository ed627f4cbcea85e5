"""Prints the SQL that would run: nothing here needs a database."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from holdfast.cli.command import App, example
from holdfast.cli.connect import options_of
from holdfast.errors import InvalidInput
from holdfast.settings import Names
from holdfast.stores.postgres import migrate
from holdfast.stores.postgres.render import Statement, statements

_LIST = "list"
_UPGRADE = "upgrade"
_SCRIPTS = {"install": migrate.install_sql, "uninstall": migrate.uninstall_sql}


def register(app: App) -> None:
    app.command(
        rich_help_panel="Set up",
        epilog=example(
            "holdfast sql install --schema jobs | psql app",
            "holdfast sql claim",
            "holdfast sql list",
        ),
    )(sql)


def sql(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="install|upgrade|uninstall|STATEMENT|list",
            help="A script, a statement that the engine runs, or `list` for the names of these.",
            show_default=False,
        ),
    ],
    since: Annotated[
        int, typer.Option(help="For upgrade: the version that is installed.", min=0)
    ] = 0,
) -> None:
    """Print SQL and nothing else. Needs no database."""
    names = options_of(ctx).names
    sys.stdout.write(_text(name, names, since))


def _text(name: str, names: Names, since: int) -> str:
    if name == _LIST:
        return "".join(f"{known}\n" for known in _known(names))
    if name == _UPGRADE:
        return migrate.upgrade_sql(names, since) or f"-- nothing is newer than version {since}\n"
    if name in _SCRIPTS:
        return _SCRIPTS[name](names)
    return "\n".join(_print(statement) for statement in _find(name, names))


def _known(names: Names) -> list[str]:
    return sorted([*_SCRIPTS, _UPGRADE, *statements(names).names()])


def _find(name: str, names: Names) -> list[Statement]:
    """The statement of that name, or all variants of a verb that has several."""
    every = statements(names)
    found = [every[known] for known in every.names() if known.partition(":")[0] == name]
    if name in every.names():
        return [every[name]]
    if not found:
        raise InvalidInput(f"there is no statement {name!r}; `holdfast sql list` names them all")
    return found


def _print(statement: Statement) -> str:
    values = ", ".join(
        f"${place} {parameter}" for place, parameter in enumerate(statement.parameters, 1)
    )
    heading = f"-- {statement.name}" + (f": {values}" if values else "")
    return f"{heading}\n{statement.text.strip()};\n"
