"""Your own table as a queue: check it, see its SQL, adopt it, look at what is stuck."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer

from holdfast.app import Holdfast
from holdfast.cli.command import FAILED, App, example
from holdfast.cli.confirm import Yes, confirm
from holdfast.cli.connect import open_holdfast, options_of, run_async
from holdfast.cli.output import duration, line, moment, print_json
from holdfast.cli.output import table as print_table
from holdfast.cli.values import parse_duration
from holdfast.errors import InvalidInput
from holdfast.stores.postgres.drivers.base import Driver
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.postgres.tables.fit import Fit, fit
from holdfast.stores.postgres.tables.inspect import Case, Counts
from holdfast.stores.postgres.tables.inspect import inspect as look
from holdfast.stores.postgres.tables.render import render
from holdfast.table import OPTIONAL, REQUIRED, TableQueue

T = TypeVar("T")

_Name = Annotated[str, typer.Argument(metavar="TABLE", help="A table, or schema.table.")]
_Due = Annotated[str, typer.Option(help="The column that says when a row is due.")]
_Key = Annotated[str, typer.Option(help="The unique column that names a row.")]
_Order = Annotated[
    list[str] | None, typer.Option(help='What is next, such as "priority desc"; repeat it.')
]
_Column = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PART=NAME",
        help="A column under another name, or PART= for none; max_attempts may be a number.",
    ),
]
_Where = Annotated[str | None, typer.Option(help="A further condition, in SQL.")]
_Lease = Annotated[str, typer.Option(help="How long a claim lasts.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: App) -> None:
    group = App(no_args_is_help=True)
    group.callback(epilog=example("holdfast table check email_snoozes --due remind_at"))(tables)
    group.command(epilog=example("holdfast table check email_snoozes --due remind_at"))(check)
    group.command(epilog=example("holdfast table adopt email_snoozes --yes"))(adopt)
    group.command(epilog=example("holdfast table sql email_snoozes"))(sql)
    group.command(epilog=example("holdfast table inspect email_snoozes -n 50"))(inspect)
    app.add_typer(group, name="table", rich_help_panel="Look")


def tables() -> None:
    """Queues on tables of your own: the row is the work."""


def check(
    ctx: typer.Context,
    name: _Name,
    due: _Due = "remind_at",
    key: _Key = "id",
    order: _Order = None,
    column: _Column = None,
    where: _Where = None,
    as_json: _Json = False,
) -> None:
    """Compare a table with what its queue needs; exit code 1 when something required is missing."""
    found = _on_table(ctx, _queue(name, due, key, order, column, where), fit)
    if as_json:
        print_json([asdict(fault) for fault in found.faults])
    else:
        _tell(found)
    if any(fault.required for fault in found.faults):
        raise typer.Exit(FAILED)


def adopt(
    ctx: typer.Context,
    name: _Name,
    due: _Due = "remind_at",
    key: _Key = "id",
    order: _Order = None,
    column: _Column = None,
    where: _Where = None,
    yes: Yes = False,
) -> None:
    """Apply what `check` prints. Asks first."""
    queue = _queue(name, due, key, order, column, where)
    found = _on_table(ctx, queue, fit)
    _tell(found)
    statements = [fault.ddl for fault in found.faults if fault.ddl]
    if not statements:
        return
    if not yes:
        confirm(f"Run these on {options_of(ctx).describe()}?")

    async def apply(driver: Driver, _: TableQueue) -> None:
        for statement in statements:
            # One at a time: an index built concurrently cannot be part of a transaction.
            await driver.fetch(statement.rstrip(";"), timeout=3600)

    _on_table(ctx, queue, apply)
    line(f"{len(statements)} changed")


def sql(
    ctx: typer.Context,
    name: _Name,
    due: _Due = "remind_at",
    key: _Key = "id",
    order: _Order = None,
    column: _Column = None,
    where: _Where = None,
) -> None:
    """Print every statement that will run against the table."""
    queue = _queue(name, due, key, order, column, where)
    for statement in render(_on_table(ctx, queue, fit).demand()).values():
        sys.stdout.write(f"-- {statement.name}\n{statement.text.strip()};\n\n")


def inspect(
    ctx: typer.Context,
    name: _Name,
    due: _Due = "remind_at",
    key: _Key = "id",
    order: _Order = None,
    column: _Column = None,
    where: _Where = None,
    lease: _Lease = "5m",
    number: Annotated[int, typer.Option("-n", min=1, help="Most rows to show.")] = 25,
    as_json: _Json = False,
) -> None:
    """What is stuck, who claimed it, for how long, how often it failed, why, and when next."""
    queue = replace(
        _queue(name, due, key, order, column, where), lease=parse_duration(lease, "--lease")
    )

    async def work(driver: Driver, queue: TableQueue) -> tuple[Counts, list[Case], datetime]:
        counts, cases = await look(driver, queue, number)
        [[now]] = await driver.fetch("select now()")
        return counts, cases, now

    counts, cases, now = _on_table(ctx, queue, work)
    if as_json:
        print_json({"counts": asdict(counts), "rows": [asdict(case) for case in cases]})
        return
    line("  ".join(f"{field.name} {getattr(counts, field.name)}" for field in fields(counts)))
    print_table(
        ("key", "state", "claimed by", "for", "failed", "next", "last error"),
        [_row(case, now) for case in cases],
        right=("failed",),
    )


def _row(case: Case, now: datetime) -> list[str]:
    return [
        case.key,
        case.state,
        case.claimed_by or "",
        duration(case.claimed_for) if case.claimed_for else "",
        str(case.attempts),
        moment(case.due, now),
        case.last_error or "",
    ]


def _tell(found: Fit) -> None:
    if not found.faults:
        line(f"{found.queue.table} is ready to be a queue", style="green")
    for fault in found.faults:
        line(fault.message, style="red" if fault.required else "yellow")
        if fault.ddl:
            line(f"    {fault.ddl}")


def _queue(
    name: str,
    due: str,
    key: str,
    order: list[str] | None,
    columns: list[str] | None,
    where: str | None,
) -> TableQueue:
    parts: dict[str, Any] = {}
    known = [*(part for part in REQUIRED if part not in ("key", "due")), *OPTIONAL, "max_attempts"]
    for pair in columns or ():
        part, mark, value = pair.partition("=")
        if not mark or part not in known:
            raise InvalidInput(f"--column {pair!r} is not PART=NAME; parts are {', '.join(known)}")
        parts[part] = int(value) if _is_cap(part, value) else value or None
    return TableQueue(name, due=due, key=key, order=tuple(order or ()), where=where, **parts)


def _is_cap(part: str, value: str) -> bool:
    """One number for all rows in place of a column."""
    return part == "max_attempts" and value.isdecimal()


def _on_table(
    ctx: typer.Context,
    queue: TableQueue,
    work: Callable[[Driver, TableQueue], Coroutine[Any, Any, T]],
) -> T:
    """Holdfast need not be installed in the database of a table queue."""

    async def opened() -> T:
        async with open_holdfast(options_of(ctx), verify=False) as holdfast:
            return await work(_driver(holdfast), queue)

    return run_async(opened)


def _driver(holdfast: Holdfast) -> Driver:
    assert isinstance(holdfast.store, PostgresStore)  # noqa: S101 - the command has no other
    return holdfast.store.driver
