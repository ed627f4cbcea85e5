"""The ledger of everything: the end of each lease, and what people did."""

from __future__ import annotations

from typing import Any

from holdfast.lifecycle import SPOKEN, Status
from holdfast.models import LogEntry
from holdfast.monitor import pages
from holdfast.web.pages.jobs import mark, place, state
from holdfast.web.visit import Page, Visit

_ROWS = 100
_ACTS = 20
_TRIES = 4
"""Stretches of the log that are read before the page says that it found nothing so far."""


async def load(visit: Visit) -> dict[str, Any]:
    by_person = visit.params.get("who") == "people"
    before = place(visit.params.get("before", ""))
    entries: list[LogEntry] = []
    reached = None
    for _ in range(_TRIES):
        entries, reached = await pages.log_page(
            visit.look,
            visit.now,
            limit=_ROWS + 1,
            before=before,
            status=state(visit.params),
            entrypoint=visit.text("entrypoint"),
            worker=visit.text("worker"),
            error=visit.text("error"),
            by_person=by_person,
        )
        if entries or reached is None:
            break
        before = (reached, 0)
    older = None
    if len(entries) > _ROWS:
        older = mark(entries[_ROWS - 1].created, entries[_ROWS - 1].id)
    elif reached is not None:
        older = mark(reached, 0)
    return {
        "entries": entries[:_ROWS],
        "older": None if older is None else visit.address.with_query(before=older),
        "reached": reached,
        "states": [(SPOKEN[status], status) for status in Status if status is not Status.PICKED],
        "status": state(visit.params),
        "by_person": by_person,
        "acts": await pages.acts(visit.look, _ACTS) if by_person else [],
        "sentence": ("Every lease that ended, and what people did.", ""),
    }


PAGE = Page("Log", "/log", "log.html", load, group=4)
