"""The tables: install, upgrade, uninstall, verify."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Annotated

import typer

from holdfast.app import Holdfast
from holdfast.cli.command import UNFIT, App, example, say
from holdfast.cli.confirm import Yes, confirm
from holdfast.cli.connect import Options, open_holdfast, options_of, run_async
from holdfast.cli.logs import TextFormatter
from holdfast.cli.output import clean, line, print_json
from holdfast.errors import PrivilegeMissing, SchemaError, SchemaTooNew, SchemaTooOld
from holdfast.stores.postgres import migrate
from holdfast.stores.postgres.migration import Way
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.postgres.upgrade_plan import PlannedMigration

_PANEL = "Set up"
_WAKE = {True: "wake workers", False: "wait for the next poll of a worker"}
_WAYS: Mapping[Way, str] = {
    Way.TRANSACTION: "one short transaction",
    Way.CONCURRENTLY: "an index is built while the table is in use",
    Way.BATCHES: "rows are changed in small batches",
}
_EFFECTS: Mapping[str, str] = {
    "ROW EXCLUSIVE": "which jobs do not notice",
    "SHARE UPDATE EXCLUSIVE": "which jobs do not notice; no vacuum meanwhile",
    "SHARE": "for a moment; writing waits",
    "SHARE ROW EXCLUSIVE": "for a moment; writing waits",
    "ACCESS EXCLUSIVE": "for a moment; reading and writing wait",
}
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: App) -> None:
    app.command(
        rich_help_panel=_PANEL,
        epilog=example(
            "holdfast install --dsn postgresql://app@localhost/app",
            "holdfast install --notify-inserts",
            "holdfast install --functions",
        ),
    )(install)
    app.command(
        rich_help_panel=_PANEL, epilog=example("holdfast upgrade --plan", "holdfast upgrade")
    )(upgrade)
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
    notify_inserts: Annotated[
        bool | None,
        typer.Option(
            "--notify-inserts/--no-notify-inserts",
            help="Add or remove a trigger that wakes workers when other programs insert rows.",
            show_default=False,
        ),
    ] = None,
    functions: Annotated[
        bool | None,
        typer.Option(
            "--functions/--no-functions",
            help="Add or remove functions that enqueue, cancel and ask for a status from SQL.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Create the tables, or apply what is missing. Safe to repeat."""
    options = options_of(ctx)

    async def work() -> list[str]:
        async with open_holdfast(options, verify=False) as holdfast:
            return await holdfast.install(
                "breakers" if breakers_only else None,
                notify_inserts=notify_inserts,
                functions=functions,
            )

    _tell(options, run_async(work), "_breakers" if breakers_only else "")
    if notify_inserts is not None:
        line(f"rows that plain SQL inserts {_WAKE[notify_inserts]}")
    if functions is not None:
        line(f"the functions for SQL are {'there' if functions else 'removed'}")


def upgrade(
    ctx: typer.Context,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Change nothing: print what will be done, and which locks it takes.",
        ),
    ] = False,
    as_json: _Json = False,
) -> None:
    """Bring tables of an older version up to this one; exit code 4 when there are none.

    Workers may go on meanwhile. Killed, it is run again and goes on where it was.
    """
    options = options_of(ctx)

    async def work() -> list[str]:
        async with open_holdfast(options, verify=False) as holdfast:
            return await holdfast.upgrade()

    if plan:
        _print_plan(options, as_json)
        return
    with _progress():
        applied = run_async(work)
    if as_json:
        print_json({"applied": applied})
        return
    _tell(options, applied)
    if applied:
        line("where roles of `holdfast sql grants` are in use, run it again: tables may be new")


@contextmanager
def _progress() -> Iterator[None]:
    """Show the log lines of an upgrade on stderr while it runs."""
    logger, handler = logging.getLogger("holdfast.upgrade"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter())
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def _print_plan(options: Options, as_json: bool) -> None:
    async def work() -> list[PlannedMigration]:
        async with open_holdfast(options, verify=False) as holdfast:
            with suppress(SchemaTooOld, SchemaTooNew):
                await holdfast.verify()
            assert isinstance(holdfast.store, PostgresStore)  # noqa: S101 - there is no other here
            return await migrate.plan(holdfast.store.driver, options.names)

    planned = run_async(work)
    if as_json:
        print_json({"plan": [asdict(migration) for migration in planned]})
        return
    if not planned:
        line("nothing to do")
    for migration in planned:
        for text in _described(migration):
            line(text)


def _described(migration: PlannedMigration) -> Iterator[str]:
    fits = "fits running workers" if migration.compatible else "STOP running workers before"
    yield f"{migration.name}: {fits}; {_WAYS[migration.way]}"
    if migration.creates:
        yield f"  creates {', '.join(migration.creates)}"
    for lock in migration.locks:
        yield f"  locks {lock.table}: {lock.mode}, {_EFFECTS[lock.mode]}"


def _tell(options: Options, applied: list[str], suffix: str = "") -> None:
    place = clean(f"{options.names.table(suffix)} in {options.describe()}")
    for name in applied:
        line(f"applied {name}")
    line(f"{place} is ready" if applied else f"{place} is up to date; nothing to do")


def verify(ctx: typer.Context, as_json: _Json = False) -> None:
    """Check that this version can work with the tables; exit code 4 when it cannot."""
    options = options_of(ctx)

    async def work() -> tuple[str | None, bool]:
        async with open_holdfast(options, verify=False) as holdfast:
            try:
                await holdfast.verify()
            except SchemaError as error:
                return str(error), False
            wakes = await holdfast.store.notifies_inserts()
            return await _unrecorded(holdfast, options), wakes

    fault, wakes = run_async(work)
    if as_json:
        print_json({"ok": fault is None, "error": fault, "notify_inserts": wakes})
    elif fault is None:
        line(clean(f"ok: {options.names.table()} in {options.describe()}"))
        line(f"rows that plain SQL inserts {_WAKE[wakes]}")
    if fault is not None:
        say(fault)
        raise typer.Exit(UNFIT)


async def _unrecorded(holdfast: Holdfast, options: Options) -> str | None:
    """Jobs that no sweep can find, where this user may look for them."""
    with suppress(PrivilegeMissing):
        if count := await holdfast.store.jobs.unrecorded():
            return clean(
                f"{count} jobs are leased without a row in {options.names.table('_leases')}, as if "
                "it had been emptied; a running worker writes the rows anew within some "
                "minutes, and jobs whose worker is gone are recovered then"
            )
    return None


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
