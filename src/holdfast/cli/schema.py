"""The tables: install, upgrade, uninstall, verify."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.command import UNFIT, App, example, say
from holdfast.cli.confirm import Yes, confirm
from holdfast.cli.connect import Options, open_holdfast, options_of, run_async
from holdfast.cli.output import clean, line, print_json
from holdfast.errors import SchemaError

_PANEL = "Set up"
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: App) -> None:
    app.command(
        rich_help_panel=_PANEL,
        epilog=example("holdfast install --dsn postgresql://app@localhost/app"),
    )(install)
    app.command(rich_help_panel=_PANEL, epilog=example("holdfast upgrade"))(upgrade)
    app.command(rich_help_panel=_PANEL, epilog=example("holdfast verify && ./deploy.sh"))(verify)
    app.command(rich_help_panel=_PANEL, epilog=example("holdfast uninstall --yes"))(uninstall)


def install(
    ctx: typer.Context,
    breakers_only: Annotated[
        bool,
        typer.Option(
            "--breakers-only",
            help="Create nothing but the table of the circuit breakers, for a database whose "
            "queues are tables of its own.",
        ),
    ] = False,
) -> None:
    """Create the tables, or apply what is missing. Safe to repeat."""
    options = options_of(ctx)

    async def work() -> list[str]:
        async with open_holdfast(options, verify=False) as holdfast:
            return await holdfast.install("breakers" if breakers_only else None)

    _tell(options, run_async(work), "_breakers" if breakers_only else "")


def upgrade(ctx: typer.Context) -> None:
    """Bring tables of an older version up to this one; exit code 4 when there are none."""
    options = options_of(ctx)

    async def work() -> list[str]:
        async with open_holdfast(options, verify=False) as holdfast:
            return await holdfast.upgrade()

    applied = run_async(work)
    _tell(options, applied)
    if applied:
        line("where roles of `holdfast sql grants` are in use, run it again: tables may be new")


def _tell(options: Options, applied: list[str], suffix: str = "") -> None:
    place = clean(f"{options.names.table(suffix)} in {options.describe()}")
    for name in applied:
        line(f"applied {name}")
    line(f"{place} is ready" if applied else f"{place} is up to date; nothing to do")


def verify(ctx: typer.Context, as_json: _Json = False) -> None:
    """Check that this version can work with the tables; exit code 4 when it cannot."""
    options = options_of(ctx)

    async def work() -> SchemaError | None:
        async with open_holdfast(options, verify=False) as holdfast:
            try:
                await holdfast.verify()
            except SchemaError as error:
                return error
            return None

    fault = run_async(work)
    if as_json:
        print_json({"ok": fault is None, "error": None if fault is None else str(fault)})
    elif fault is None:
        line(clean(f"ok: {options.names.table()} in {options.describe()}"))
    if fault is not None:
        say(str(fault))
        raise typer.Exit(UNFIT)


def uninstall(ctx: typer.Context, yes: Yes = False) -> None:
    """Remove the tables, with every job and the log. Asks first."""
    options = options_of(ctx)
    place = f"{options.names.table()} and its companions in {options.describe()}"

    async def count() -> int:
        async with open_holdfast(options) as holdfast:
            return sum(entry.count for entry in await holdfast.queries.queue_size())

    async def remove() -> None:
        async with open_holdfast(options, verify=False) as holdfast:
            await holdfast.uninstall()

    if not yes:
        jobs = run_async(count)
        confirm(f"Remove {place}, with {jobs} jobs and the whole log?")
    run_async(remove)
    line(clean(f"removed {place}"))
