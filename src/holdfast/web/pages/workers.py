"""Who works: slots, what runs where, and how long ago each reported."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from markupsafe import Markup

from holdfast.models import WorkerInfo
from holdfast.monitor import pages
from holdfast.web.charts import bar
from holdfast.web.visit import Page, Visit


@dataclass(frozen=True, slots=True)
class Line:
    """A worker as the table shows it."""

    worker: WorkerInfo
    bar: Markup
    silent: bool
    dead: bool
    runs: list[tuple[str, int]]
    back_at: datetime | None
    """When the first of its jobs is recovered, if it stays silent."""


async def load(visit: Visit) -> dict[str, Any]:
    runs: dict[str, list[pages.Running]] = defaultdict(list)
    for row in await pages.running(visit.look):
        runs[row.worker].append(row)
    lines = [
        _line(worker, runs[worker.id], visit.now) for worker in await pages.workers(visit.look)
    ]
    versions = sorted({line.worker.version for line in lines})
    return {"lines": lines, "sentence": _sentence(lines), "versions": versions}


def _line(worker: WorkerInfo, runs: list[pages.Running], now: datetime) -> Line:
    quiet = pages.silent(worker, now)
    return Line(
        worker,
        bar(worker.running, worker.concurrency, f"{worker.running} of {worker.concurrency} slots"),
        quiet,
        now - worker.heartbeat > pages.patience(worker),
        sorted((row.entrypoint, row.count) for row in runs),
        min((row.first_end for row in runs), default=None) if quiet else None,
    )


def _sentence(lines: list[Line]) -> tuple[str, str]:
    if not lines:
        return "No worker is running.", ""
    live = [line for line in lines if not line.silent]
    slots = sum(line.worker.concurrency for line in live)
    busy = sum(line.worker.running for line in live)
    quiet = len(lines) - len(live)
    n = len(live)
    head = f"{n} worker{'s' if n != 1 else ''} with {slots:,} slots, {busy:,} of them busy."
    if not quiet:
        return head, ""
    return head, f"{quiet} silent: the jobs of a silent worker come back when their leases end."


PAGE = Page("Workers", "/workers", "workers.html", load, group=2)
