"""`holdfast retention`: how long the log is kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from holdfast.app import Holdfast
from holdfast.cli.command import App, example
from holdfast.cli.connect import on_holdfast, options_of
from holdfast.cli.output import duration, line, print_json
from holdfast.cli.values import parse_duration
from holdfast.errors import InvalidInput
from holdfast.settings import Retention

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_ALL = "none"
_BATCH = 10_000


def register(app: App) -> None:
    group = App(help="How long the log is kept.", no_args_is_help=True)
    group.callback(epilog=example("holdfast retention show"))(retention)
    group.command(epilog=example("holdfast retention show"))(show)
    group.command(
        "set",
        epilog=example(
            "holdfast retention set --successful 7d --others 90d",
            "holdfast retention set --successful none",
        ),
    )(set_retention)
    group.command(epilog=example("holdfast retention apply"))(apply)
    app.add_typer(group, name="retention", rich_help_panel="Act")


def retention() -> None:
    """Show or set how long the log is kept, or delete what has expired."""


def show(ctx: typer.Context, as_json: _Json = False) -> None:
    """Print how long log rows are kept."""
    _print(on_holdfast(options_of(ctx), lambda hf: hf.queries.retention()), as_json)


def set_retention(
    ctx: typer.Context,
    successful: Annotated[
        str | None, typer.Option(help="For rows of jobs that succeeded: 30d, 12h; none keeps all.")
    ] = None,
    others: Annotated[
        str | None, typer.Option(help="For all other rows: 90d; none keeps all.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Set how long log rows are kept, for all workers. What is left out stays as it is."""
    if successful is None and others is None:
        raise InvalidInput("nothing to set; pass --successful 30d, --others 90d, or both")

    async def work(hf: Holdfast) -> Retention:
        known = await hf.queries.retention()
        wanted = Retention(
            known.succeeded if successful is None else _parse(successful, "--successful"),
            known.others if others is None else _parse(others, "--others"),
        )
        await hf.queries.set_retention(wanted)
        return wanted

    _print(on_holdfast(options_of(ctx), work), as_json)


def apply(ctx: typer.Context, as_json: _Json = False) -> None:
    """Delete the log rows whose time is over now, instead of waiting for a worker to do it."""

    async def work(hf: Holdfast) -> int:
        total = 0
        while gone := await hf.queries.delete_expired_log(limit=_BATCH):
            total += gone
        return total

    rows = on_holdfast(options_of(ctx), work)
    if as_json:
        print_json({"deleted": rows})
    else:
        line(f"{rows} log rows deleted")


def _parse(text: str, option: str) -> timedelta | None:
    if text.strip().lower() == _ALL:
        return None
    kept = parse_duration(text, option)
    if not kept:
        raise InvalidInput(
            f"{option} must be a time to keep rows for, such as 30d, or none to keep all; "
            f"got {text!r}"
        )
    return kept


def _print(found: Retention, as_json: bool) -> None:
    kinds = {"successful": found.succeeded, "others": found.others}
    if as_json:
        print_json(
            {kind: None if kept is None else kept.total_seconds() for kind, kept in kinds.items()}
        )
        return
    for kind, kept in kinds.items():
        line(f"{kind:10} {'kept for ever' if kept is None else f'{duration(kept)} after the end'}")
    line("rows of jobs that are still in the queue, such as held ones, are always kept")
