"""`holdfast explain ID`: why a job is not running, and the command that would change it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from holdfast.app import Holdfast
from holdfast.cli.command import UNFIT, App, example
from holdfast.cli.connect import on_holdfast, options_of
from holdfast.cli.output import clean, paragraph, print_json, shorten, when
from holdfast.cli.values import parse_id
from holdfast.errors import InvalidInput
from holdfast.explanation import Code, Explanation


def register(app: App) -> None:
    app.command(
        rich_help_panel="Look",
        epilog=example("holdfast explain 42", "holdfast explain --entrypoint mail --json"),
    )(explain)


def explain(
    ctx: typer.Context,
    number: Annotated[str | None, typer.Argument(metavar="[ID]", help="Id of the job.")] = None,
    entrypoint: Annotated[
        str | None, typer.Option(help="Instead: the next job of this entrypoint.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say why a job is not running, until when, and what would change that.

    Tables that Holdfast cannot work with are such a reason, too; then the exit code is 4.
    """
    if (number is None) is (entrypoint is None):
        raise InvalidInput("say which: the ID of a job, or --entrypoint NAME")

    async def look(holdfast: Holdfast) -> tuple[Explanation, datetime]:
        if entrypoint is not None:
            found = await holdfast.explain(entrypoint=entrypoint)
        else:
            found = await holdfast.explain(parse_id(number or ""))
        return found, await holdfast.queries.now()

    # Tables that do not fit are an answer here.
    found, now = on_holdfast(options_of(ctx), look, verify=False)
    if as_json:
        print_json(explanation_record(found))
    else:
        print_explanation(found, now)
    if found.code is Code.SCHEMA:
        raise typer.Exit(UNFIT)


def explanation_record(found: Explanation) -> dict[str, Any]:
    """As JSON. The field names and codes are a promise to scripts."""
    return asdict(found)


def print_explanation(found: Explanation, now: datetime) -> None:
    for each in explanation_lines(found, now):
        paragraph(each, indent=2)


def explanation_lines(found: Explanation, now: datetime) -> Iterator[Text]:
    yield Text.assemble((f"{found.code}  ", "bold"), clean(found.sentence))
    if found.until is not None:
        soon = when(found.until, now) if found.until > now else "at any moment"
        yield Text(f"  may change {soon}", style="dim")
    if query := found.details.get("query"):
        yield Text.assemble(("  it runs  ", "dim"), shorten(" ".join(str(query).split()), 200))
    if found.command is not None:
        yield Text.assemble(("  try  ", "dim"), clean(found.command), no_wrap=True)
