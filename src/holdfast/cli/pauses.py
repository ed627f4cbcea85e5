"""`holdfast pause`, `resume`, `pauses`, and `acts`: who stopped what, and let it go on."""

from __future__ import annotations

import difflib
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer
from rich.text import Text

from holdfast.app import Holdfast
from holdfast.cli.command import App, example
from holdfast.cli.connect import actor, on_holdfast, options_of
from holdfast.cli.output import clean, line, moment, print_json, table
from holdfast.cli.values import parse_duration, parse_instant
from holdfast.errors import InvalidInput
from holdfast.models import Act, Pause
from holdfast.shell import shell_word

_Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="An entrypoint or a table queue.")
]
_All = Annotated[bool, typer.Option("--all", help="Everything, whatever its name.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: App) -> None:
    app.command(
        rich_help_panel="Act",
        epilog=example(
            "holdfast pause mail --reason 'smtp is down'",
            "holdfast pause --all --until 30m --reason 'database move'",
        ),
    )(pause)
    app.command(rich_help_panel="Act", epilog=example("holdfast resume mail"))(resume)
    app.command(rich_help_panel="Look", epilog=example("holdfast pauses --json"))(pauses)
    app.command(rich_help_panel="Look", epilog=example("holdfast acts --limit 20"))(acts)


def pause(
    ctx: typer.Context,
    name: _Name = None,
    reason: Annotated[str, typer.Option(help="Why, for whoever finds it paused.")] = "",
    until: Annotated[
        str | None, typer.Option(help="End it then: 30m, or an ISO time with its offset.")
    ] = None,
    everything: _All = False,
    as_json: _Json = False,
) -> None:
    """Claim no job of an entrypoint or table queue, in the whole fleet, one second from now on.

    Running jobs finish. Deferred jobs keep their times.
    """
    _require_one(name, everything)
    end = None if until is None else _end(until)

    async def work(holdfast: Holdfast) -> tuple[Pause, list[str], datetime]:
        paused = await holdfast.queries.pause(
            name, everything=everything, until=end, reason=reason, actor=actor()
        )
        known = [entry.entrypoint for entry in await holdfast.queries.queue_size()]
        for worker in await holdfast.queries.list_workers():
            known += worker.entrypoints
        return paused, known, await holdfast.queries.now()

    paused, known, now = on_holdfast(options_of(ctx), work)
    if as_json:
        print_json(pause_record(paused))
        return
    line(clean(f"{_named(paused.name)} is paused {ends(paused, now)}"))
    if paused.name and paused.name not in known:
        near = difflib.get_close_matches(paused.name, known, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        line(
            clean(f"no worker serves {paused.name} and no job waits for it{meant}"), style="yellow"
        )


def resume(
    ctx: typer.Context,
    name: _Name = None,
    reason: Annotated[str | None, typer.Option(help="Why, for the record.")] = None,
    everything: _All = False,
) -> None:
    """End a pause; jobs are claimed again at once."""

    _require_one(name, everything)

    async def work(holdfast: Holdfast) -> None:
        await holdfast.queries.resume(name, everything=everything, reason=reason, actor=actor())

    on_holdfast(options_of(ctx), work)
    line(clean(f"{_named(name or '')} goes on"))


def pauses(ctx: typer.Context, as_json: _Json = False) -> None:
    """List what is paused, by whom and why."""

    async def look(holdfast: Holdfast) -> tuple[list[Pause], datetime]:
        return await holdfast.queries.list_pauses(), await holdfast.queries.now()

    found, now = on_holdfast(options_of(ctx), look)
    if as_json:
        print_json([pause_record(each) for each in found])
    elif not found:
        line("nothing is paused")
    else:
        print_pauses(found, now)


def acts(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 50,
    as_json: _Json = False,
) -> None:
    """List who paused, resumed, ran or removed what, and opened or closed which breaker.

    What people did to a job is in its own log: holdfast show ID.
    """

    async def look(holdfast: Holdfast) -> tuple[list[Act], datetime]:
        return await holdfast.queries.list_acts(limit), await holdfast.queries.now()

    found, now = on_holdfast(options_of(ctx), look)
    if as_json:
        print_json([each._asdict() for each in found])
    elif not found:
        line("nobody has paused, run or held open anything")
    else:
        rows: list[list[str | Text]] = [
            [
                moment(each.created, now),
                each.act,
                _named(each.subject),
                each.actor or "",
                each.reason or "",
            ]
            for each in found
        ]
        table(["when", "act", "of", "by", "reason"], rows)


def print_pauses(found: list[Pause], now: datetime) -> None:
    rows: list[list[str | Text]] = [
        [
            Text(_named(each.name), style="yellow"),
            moment(each.created, now),
            "resumed" if each.until is None else moment(each.until, now),
            each.actor or "",
            each.reason,
        ]
        for each in found
    ]
    table(["paused", "since", "until", "by", "reason"], rows, spare=("since",))


def pause_record(pause: Pause) -> dict[str, Any]:
    """As JSON. The field names are a promise to scripts."""
    return {"everything": not pause.name, **pause._asdict()}


def ends(pause: Pause, now: datetime) -> str:
    if pause.until is None:
        what = shell_word(pause.name, positional=True) if pause.name else "--all"
        return f"until `holdfast resume {what}`"
    return f"until {moment(pause.until, now)}"


def _require_one(name: str | None, everything: bool) -> None:
    if bool(name) is everything:
        raise InvalidInput("say which: the NAME of an entrypoint or table queue, or --all")


def _named(name: str) -> str:
    return name or "everything"


def _end(text: str) -> datetime | timedelta:
    try:
        return parse_duration(text, "--until")
    except InvalidInput:
        return parse_instant(text, "--until")
