"""Queues on tables of the user's own, those that this process has registered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.models import Pause
from holdfast.monitor import pages
from holdfast.web.inspected import Seen
from holdfast.web.standing import short
from holdfast.web.visit import Page, Visit

STATES = {
    "stuck": ("warn", "claimed for longer than its lease lasts; another worker recovers it"),
    "claimed": ("picked", "a worker runs it"),
    "retired": ("held", "its attempts are spent, and it is inactive"),
    "suspect": ("recover", "a worker may have died with it, so it runs with few others"),
    "retrying": ("retry", "it failed before, and runs again when it is due"),
}
"""Shape and meaning."""


@dataclass(frozen=True, slots=True)
class Line:
    """A table, what was seen in it, and the pause that keeps its rows from being claimed."""

    name: str
    seen: Seen
    pause: Pause | None


async def load(visit: Visit) -> dict[str, Any]:
    site, paused = visit.site, await pages.pauses(visit.look)
    lines = [
        Line(name, await site.inspected.look(visit.look, name, queue), pages.paused(paused, name))
        for name, queue in sorted(site.hf.tables.items())
    ]
    return {"lines": lines, "states": STATES, "short": short, "sentence": _sentence(lines)}


def _sentence(lines: Sequence[Line]) -> tuple[str, str]:
    n = len(lines)
    if not n:
        return "No table queue is registered.", ""
    due = sum(line.seen.counts.due for line in lines if line.seen.counts)
    retired = sum(line.seen.counts.retired for line in lines if line.seen.counts)
    stopped = sum(line.pause is not None for line in lines)
    parts = [f"{due:,} row{'s' if due != 1 else ''} due"]
    parts += [f"{retired:,} retired"] if retired else []
    parts += [f"{stopped} paused"] if stopped else []
    return f"{n} table{'s' if n != 1 else ''} of your own.", f"{', '.join(parts)}."


PAGE = Page("Table queues", "/tables", "tables.html", load, group=2)
