"""Recurring jobs: when each is due next; pause, resume, run now."""

from __future__ import annotations

from typing import Any

from holdfast.monitor import pages
from holdfast.web.visit import Page, Visit
from holdfast.web.words import relative


async def load(visit: Visit) -> dict[str, Any]:
    found = await pages.schedules(visit.look)
    paused = sum(schedule.paused for schedule in found)
    following = min((s for s in found if not s.paused), key=lambda s: s.next_run, default=None)
    n = len(found)
    head = f"{n} schedule{'s' if n != 1 else ''}{f', {paused} paused' if paused else ''}."
    rest = (
        f"Next is {following.name}, {relative(following.next_run, visit.now)}." if following else ""
    )
    return {"schedules": found, "sentence": (head if n else "There is no schedule.", rest)}


PAGE = Page("Schedules", "/schedules", "schedules.html", load, group=2)
