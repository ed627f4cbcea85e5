"""`holdfast stats`: the queue now, and what was done lately."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Annotated, Any, NamedTuple

import typer
from rich.text import Text

from holdfast.app import Holdfast
from holdfast.cli.command import App, example
from holdfast.cli.connect import on_holdfast, options_of
from holdfast.cli.output import coloured, duration, line, moment, print_json, spoken, table
from holdfast.cli.pauses import pause_record, print_pauses
from holdfast.cli.records import size_record, statistic_record
from holdfast.cli.values import parse_duration
from holdfast.lifecycle import LIVE, Status
from holdfast.models import Pause, QueueSize, Statistic

# More than any number of minutes, entrypoints and priorities that a queue has had.
_EVERY_BUCKET = 2**31 - 1


class _Seen(NamedTuple):
    sizes: list[QueueSize]
    statistics: list[Statistic]
    behind: datetime | None
    pauses: list[Pause]
    now: datetime


def register(app: App) -> None:
    app.command(rich_help_panel="Look", epilog=example("holdfast stats --last 24h"))(stats)


def stats(
    ctx: typer.Context,
    last: Annotated[str, typer.Option(help="How far to look back: 15m, 1h, 7d.")] = "1h",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count the queue now, and what was done in the last hour."""
    span = parse_duration(last, "--last")

    async def look(holdfast: Holdfast) -> _Seen:
        queries = holdfast.queries
        found = await queries.log_statistics(last=span, limit=_EVERY_BUCKET)
        return _Seen(
            await queries.queue_size(),
            found,
            await queries.uncounted_since(),
            await queries.list_pauses(),
            await queries.now(),
        )

    sizes, statistics, behind, paused, now = on_holdfast(options_of(ctx), look)
    if as_json:
        record = _stats_record(span, sizes, statistics)
        record["incomplete_since"] = None if behind is None else behind.isoformat()
        print_json({**record, "pauses": [pause_record(each) for each in paused]})
        return
    _print_sizes(sizes)
    if paused:
        line()
        print_pauses(paused, now)
    line()
    _print_statistics(span, statistics)
    if behind:
        line(
            f"the counts lack jobs since {moment(behind, now)}: a transaction on the server that "
            "is still open holds them back (pg_stat_activity, xact_start)"
        )


def _stats_record(
    span: timedelta, sizes: list[QueueSize], statistics: list[Statistic]
) -> dict[str, Any]:
    return {
        "last_seconds": span.total_seconds(),
        "queue": [size_record(entry) for entry in sizes],
        "statistics": [statistic_record(statistic) for statistic in statistics],
    }


def _print_sizes(sizes: list[QueueSize]) -> None:
    if not sizes:
        line("the queue is empty")
        return
    counts: dict[str, dict[Status, int]] = defaultdict(lambda: defaultdict(int))
    for entry in sizes:
        counts[entry.entrypoint][entry.status] += entry.count
    words = [spoken(status) for status in LIVE]
    rows = [[name, *(str(counts[name][status]) for status in LIVE)] for name in sorted(counts)]
    table(["entrypoint", *words], rows, right=words)


def _print_statistics(span: timedelta, statistics: list[Statistic]) -> None:
    if not statistics:
        line(f"nothing was logged in the last {duration(span)}")
        return
    counts: dict[tuple[str, Status], int] = defaultdict(int)
    busy: dict[tuple[str, Status], timedelta] = defaultdict(timedelta)
    for entry in statistics:
        counts[entry.entrypoint, entry.status] += entry.count
        busy[entry.entrypoint, entry.status] += entry.busy
    minutes = span.total_seconds() / 60
    rows: list[list[str | Text]] = [
        [
            name,
            coloured(status),
            str(count),
            f"{count / minutes:.2f}" if minutes else "",
            duration(busy[name, status] / count),
        ]
        for (name, status), count in sorted(counts.items())
    ]
    columns = [f"last {duration(span)}", "status", "count", "a minute", "mean time"]
    table(columns, rows, right=("count", "a minute", "mean time"))
