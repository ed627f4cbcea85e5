"""Queues on tables of the user's own, those that this process has registered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.errors import ConnectionFailed, ConnectionLost, HoldfastError
from holdfast.models import Pause
from holdfast.monitor import pages
from holdfast.redact import redact
from holdfast.stores.postgres.tables.inspect import Case, Counts, inspect
from holdfast.web.visit import Page, Visit

_CASES = 20


@dataclass(frozen=True, slots=True)
class Line:
    """A table, its counts, and the rows that ask for attention."""

    name: str
    counts: Counts | None = None
    cases: tuple[Case, ...] = ()
    fault: str = ""
    pause: Pause | None = None


async def load(visit: Visit) -> dict[str, Any]:
    lines, paused = [], await pages.pauses(visit.look)
    for name, queue in sorted(visit.site.hf.tables.items()):
        try:
            counts, cases = await inspect(visit.look.driver, queue, _CASES)
        except (ConnectionFailed, ConnectionLost):
            raise
        except HoldfastError as error:
            lines.append(Line(name, fault=redact(str(error))))
            break
        lines.append(Line(name, counts, tuple(cases), pause=pages.paused(paused, name)))
    n = len(lines)
    head = (
        f"{n} table{'s' if n != 1 else ''} of your own." if n else "No table queue is registered."
    )
    return {"lines": lines, "sentence": (head, "")}


PAGE = Page("Table queues", "/tables", "tables.html", load, group=2)
