"""Prints the SQL that would run: nothing here needs a database, unless the grants are applied."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from holdfast.cli.command import App, example
from holdfast.cli.connect import Options, open_holdfast, options_of, run_async
from holdfast.cli.output import clean, line
from holdfast.errors import InvalidInput
from holdfast.settings import Names
from holdfast.stores.postgres import migrate
from holdfast.stores.postgres.grants import DatabaseRole, RoleNames, grants_sql
from holdfast.stores.postgres.render import Statement, statements
from holdfast.stores.postgres.store import PostgresStore
from holdfast.table import TableQueue

_LIST = "list"
_UPGRADE = "upgrade"
_GRANTS = "grants"
_ROLES = "Roles, for grants"
_SCRIPTS = {
    "install": migrate.install_sql,
    "uninstall": migrate.uninstall_sql,
    "notify-inserts": migrate.notify_inserts_sql,
}


def _role(purpose: str) -> Any:
    return typer.Option(
        metavar="NAME", help=f"{purpose} PREFIX_… unless given.", rich_help_panel=_ROLES
    )


def register(app: App) -> None:
    app.command(
        rich_help_panel="Set up",
        epilog=example(
            "holdfast sql install --schema jobs | psql app",
            "holdfast sql grants --worker app_worker | psql app",
            "holdfast sql claim",
            "holdfast sql list",
        ),
    )(sql)


def sql(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="install|upgrade|uninstall|grants|notify-inserts|STATEMENT|list",
            help="A script, a statement that the engine runs, or `list` for the names of these.",
            show_default=False,
        ),
    ],
    since: Annotated[
        int, typer.Option(help="For upgrade: the version that is installed.", min=0)
    ] = 0,
    producer: Annotated[str | None, _role("It enqueues, and reads what became of jobs.")] = None,
    worker: Annotated[str | None, _role("It runs jobs.")] = None,
    operator: Annotated[str | None, _role("It requeues, cancels, edits and pauses.")] = None,
    pruner: Annotated[str | None, _role("It deletes old rows of the log.")] = None,
    reader: Annotated[str | None, _role("It looks and changes nothing.")] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TABLE",
            help="A table of your own that is a queue; repeat it.",
            rich_help_panel=_ROLES,
        ),
    ] = None,
    reader_sees_payloads: Annotated[
        bool,
        typer.Option(
            "--reader-sees-payloads",
            help="Let the reader see what jobs carry: payloads and headers.",
            rich_help_panel=_ROLES,
        ),
    ] = False,
    only_tables: Annotated[
        bool,
        typer.Option(
            "--only-tables",
            help="Leave out Holdfast's own tables, which are not installed here.",
            rich_help_panel=_ROLES,
        ),
    ] = False,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply",
            help="Run the script, as the owner of the tables, instead of printing it.",
            rich_help_panel=_ROLES,
        ),
    ] = False,
) -> None:
    """Print SQL and nothing else. Needs no database.

    The roles of `grants` are made where they do not exist, without a login; give them to the users
    of your programs: grant holdfast_worker to app.
    """
    options = options_of(ctx)
    given = dict(zip(DatabaseRole, (producer, worker, operator, pruner, reader), strict=True))
    wanted = any((*given.values(), table, reader_sees_payloads, only_tables, apply))
    if wanted and name != _GRANTS:
        raise InvalidInput(f"{name!r} takes no roles, tables or --apply; only grants does")
    if name != _GRANTS:
        sys.stdout.write(_text(name, options.names, since))
        return
    if only_tables and not table:
        raise InvalidInput("--only-tables needs a --table TABLE")
    roles = RoleNames.of(options.names, given)
    queues = [TableQueue(name) for name in table or ()]
    script = grants_sql(
        options.names, roles, queues, own=not only_tables, payloads=reader_sees_payloads
    )
    if apply:
        _apply(options, script, roles)
    else:
        sys.stdout.write(script)


def _apply(options: Options, script: str, roles: RoleNames) -> None:
    async def work() -> None:
        async with open_holdfast(options, verify=False) as holdfast:
            assert isinstance(holdfast.store, PostgresStore)  # noqa: S101 - there is no other here
            async with holdfast.store.driver.transaction() as tx:
                await tx.script(script.removeprefix("begin;\n").removesuffix("commit;\n"))

    run_async(work)
    given = ", ".join(dict.fromkeys(roles.all().values()))
    line(clean(f"granted to {given} in {options.describe()}"))


def _text(name: str, names: Names, since: int) -> str:
    if name == _LIST:
        return "".join(f"{known}\n" for known in _known(names))
    if name == _UPGRADE:
        return migrate.upgrade_sql(names, since) or f"-- nothing is newer than version {since}\n"
    if name in _SCRIPTS:
        return _SCRIPTS[name](names)
    return "\n".join(_print(statement) for statement in _find(name, names))


def _known(names: Names) -> list[str]:
    return sorted([*_SCRIPTS, _UPGRADE, _GRANTS, *statements(names).names()])


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
