"""The log for the operator."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from holdfast.app import Holdfast
from holdfast.cli.command import App, example
from holdfast.cli.connect import on_holdfast, options_of
from holdfast.cli.output import (
    coloured,
    duration,
    line,
    moment,
    print_json,
    shorten,
    table,
)
from holdfast.cli.records import log_record
from holdfast.lifecycle import Status
from holdfast.models import LogEntry

_PANEL = "Look"

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Limit = Annotated[int, typer.Option("-n", "--limit", help="How many at most.")]
_Entrypoint = Annotated[str | None, typer.Option(help="Only of this entrypoint.")]


def register(app: App) -> None:
    app.command(
        rich_help_panel=_PANEL, epilog=example("holdfast log --status exception --entrypoint mail")
    )(log)


def log(
    ctx: typer.Context,
    limit: _Limit = 25,
    status: Annotated[
        str | None, typer.Option(help=f"Only with this status: {', '.join(Status)}.")
    ] = None,
    entrypoint: _Entrypoint = None,
    as_json: _Json = False,
) -> None:
    """List what happened last, newest first."""

    async def look(holdfast: Holdfast) -> tuple[list[LogEntry], datetime]:
        found = await holdfast.queries.queue_log(limit=limit, status=status, entrypoint=entrypoint)
        return found, await holdfast.queries.now()

    entries, now = on_holdfast(options_of(ctx), look)
    if as_json:
        print_json([log_record(entry) for entry in entries])
    elif not entries:
        line("the log has no such row")
    else:
        columns = ["time", "job", "entrypoint", "status", "attempt", "ran", "by", "detail"]
        rows = [_log_row(entry, now) for entry in entries]
        table(columns, rows, right=("job", "attempt", "ran"), spare=("ran", "by"))


def _log_row(entry: LogEntry, now: datetime) -> list[str | Text]:
    ran = "" if entry.claimed_at is None else duration(entry.created - entry.claimed_at)
    return [
        moment(entry.created, now),
        str(entry.job_id),
        entry.entrypoint,
        coloured(entry.status),
        str(entry.attempt),
        ran,
        entry.actor or entry.claimed_by or "",
        detail(entry),
    ]


def detail(entry: LogEntry) -> str:
    """Why: the reason given, and the exception where there was one."""
    parts = [entry.reason or ""]
    if entry.traceback:
        kind = entry.traceback.get("exception_type", "")
        parts.append(f"{kind}: {entry.traceback.get('exception_message', '')}")
    return shorten("; ".join(part for part in parts if part))
