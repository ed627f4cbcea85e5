"""`holdfast clear`: empty the queue, the log or the statistics. Each asks first."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import typer

from holdfast.app import Holdfast
from holdfast.cli.command import App, example
from holdfast.cli.confirm import Yes, confirm
from holdfast.cli.connect import actor, on_holdfast, options_of
from holdfast.cli.output import line, print_json

_Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ENTRYPOINTS...]", help="Only of these entrypoints; else of all."),
]
_Reason = Annotated[str | None, typer.Option(help="Why, for the log.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: App) -> None:
    group = App(help="Empty the queue, the log or the statistics.", no_args_is_help=True)
    group.callback(epilog=example("holdfast clear queue mail"))(clear)
    group.command("queue", epilog=example("holdfast clear queue mail --yes"))(queue)
    group.command("log", epilog=example("holdfast clear log --yes"))(log)
    group.command("statistics", epilog=example("holdfast clear statistics --yes"))(statistics)
    app.add_typer(group, name="clear", rich_help_panel="Act")


def clear() -> None:
    """Empty the queue, the log or the statistics."""


def queue(
    ctx: typer.Context,
    entrypoints: _Names = None,
    reason: _Reason = None,
    yes: Yes = False,
    as_json: _Json = False,
) -> None:
    """Delete the jobs that wait or are held, and cancel those that run. Asks first."""

    async def work(holdfast: Holdfast) -> int:
        return await holdfast.queries.clear_queue(entrypoints, actor=actor(), reason=reason)

    _clear(ctx, "jobs", entrypoints, work, yes=yes, as_json=as_json)


def log(
    ctx: typer.Context, entrypoints: _Names = None, yes: Yes = False, as_json: _Json = False
) -> None:
    """Delete the log, whatever its age; statistics stay (see prune). Asks first."""

    async def work(holdfast: Holdfast) -> int:
        return await holdfast.queries.clear_queue_log(entrypoints)

    _clear(ctx, "log rows", entrypoints, work, yes=yes, as_json=as_json)


def statistics(
    ctx: typer.Context, entrypoints: _Names = None, yes: Yes = False, as_json: _Json = False
) -> None:
    """Delete the statistics; the log stays. Asks first."""

    async def work(holdfast: Holdfast) -> int:
        return await holdfast.queries.clear_statistics_log(entrypoints)

    _clear(ctx, "rows of statistics", entrypoints, work, yes=yes, as_json=as_json)


def _clear(
    ctx: typer.Context,
    what: str,
    entrypoints: list[str] | None,
    work: Callable[[Holdfast], Coroutine[Any, Any, int]],
    *,
    yes: bool,
    as_json: bool,
) -> None:
    options = options_of(ctx)
    if not yes:
        whose = f"of {', '.join(entrypoints)}" if entrypoints else "of every entrypoint"
        confirm(f"Delete all {what} {whose} in {options.describe()}?")
    gone = on_holdfast(options, work)
    if as_json:
        print_json({"deleted": gone})
    else:
        line(f"{gone} {what} deleted")
