"""`holdfast breaker`: list the circuit breakers, hold one open, close one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer
from rich.text import Text

from holdfast.app import Holdfast
from holdfast.breaker import Breaker, BreakerState
from holdfast.cli.command import App, example
from holdfast.cli.connect import Options, actor, open_holdfast, options_of, run_async
from holdfast.cli.output import clean, duration, line, moment, print_json, table
from holdfast.shell import shell_word

T = TypeVar("T")

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Name = Annotated[str, typer.Argument(help="Name of the circuit breaker.")]
_STYLES = {BreakerState.CLOSED: "green", BreakerState.OPEN: "red", BreakerState.HALF_OPEN: "yellow"}


def register(app: App) -> None:
    group = App(help="List circuit breakers, hold one open, close one.", no_args_is_help=True)
    group.callback(epilog=example("holdfast breaker list"))(breaker)
    group.command("list", epilog=example("holdfast breaker list --json"))(list_breakers)
    group.command(
        "open", epilog=example('holdfast breaker open stripe --reason "their maintenance"')
    )(open_breaker)
    group.command("close", epilog=example("holdfast breaker close stripe"))(close_breaker)
    app.add_typer(group, name="breaker", rich_help_panel="Act")


def breaker() -> None:
    """List circuit breakers, hold one open, close one."""


def list_breakers(ctx: typer.Context, as_json: _Json = False) -> None:
    """List the circuit breakers and what they let through."""

    async def look(holdfast: Holdfast) -> tuple[list[Breaker], datetime]:
        return await holdfast.queries.list_breakers(), await holdfast.queries.now()

    found, now = _on(options_of(ctx), look)
    if as_json:
        print_json([breaker_record(breaker) for breaker in found])
    elif not found:
        line("there is no circuit breaker")
    else:
        columns = ["name", "state", "failures", "opened", "tries again", "cooldown", "held by"]
        rows = [_row(breaker, now) for breaker in found]
        spare = ("opened", "cooldown")
        table([*columns, "reason"], rows, right=["failures"], spare=spare)


def _row(breaker: Breaker, now: datetime) -> list[str | Text]:
    again = breaker.tries_again_at
    return [
        breaker.name,
        Text(_words(breaker), style=_STYLES[breaker.state]),
        str(breaker.failures),
        moment(breaker.opened_at, now),
        moment(again, now),
        "" if again is None else duration(breaker.cooldown),
        breaker.actor or "",
        breaker.reason or "",
    ]


def _words(breaker: Breaker) -> str:
    word = breaker.state.replace("_", " ")
    return f"held {word}" if breaker.forced else word


def breaker_record(breaker: Breaker) -> dict[str, Any]:
    """As JSON. The field names are a promise to scripts."""
    return {
        "name": breaker.name,
        "state": breaker.state,
        "generation": breaker.generation,
        "failures": breaker.failures,
        "opened_at": breaker.opened_at,
        "cooldown_seconds": breaker.cooldown.total_seconds(),
        "tries_again_at": breaker.tries_again_at,
        "probes_expire_at": list(breaker.probes),
        "actor": breaker.actor,
        "reason": breaker.reason,
        "updated": breaker.updated,
    }


def open_breaker(
    ctx: typer.Context,
    name: _Name,
    reason: Annotated[str | None, typer.Option(help="Why, for whoever finds it open.")] = None,
    as_json: _Json = False,
) -> None:
    """Hold a circuit breaker open: its work waits until it is closed by hand."""

    async def work(holdfast: Holdfast) -> tuple[Breaker, bool]:
        known = name in {breaker.name for breaker in await holdfast.queries.list_breakers()}
        return await holdfast.queries.open_breaker(name, actor=actor(), reason=reason), known

    held, known = _on(options_of(ctx), work)
    if as_json:
        print_json(breaker_record(held))
    else:
        command = f"holdfast breaker close {shell_word(name, positional=True)}"
        line(clean(f"breaker {name} is held open until `{command}`"))
        if not known:
            line("no worker has named it yet; `holdfast breaker list` shows how it is spelled")


def close_breaker(ctx: typer.Context, name: _Name, as_json: _Json = False) -> None:
    """Close a circuit breaker now, whoever or whatever opened it."""

    async def work(holdfast: Holdfast) -> Breaker:
        return await holdfast.queries.close_breaker(name, actor=actor())

    closed = _on(options_of(ctx), work)
    if as_json:
        print_json(breaker_record(closed))
    else:
        line(clean(f"breaker {name} is closed"))


def _on(options: Options, work: Callable[[Holdfast], Awaitable[T]]) -> T:
    """Without a look at the other tables: the breakers' may be the only one."""

    async def opened() -> T:
        async with open_holdfast(options, verify=False) as holdfast:
            return await work(holdfast)

    return run_async(opened)
