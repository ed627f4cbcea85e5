"""Recurring jobs: when each is due next; pause, resume, run now."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from holdfast.models import Schedule
from holdfast.monitor import pages
from holdfast.web.visit import Page, Visit
from holdfast.web.words import coarse, relative

_GRACE = timedelta(seconds=15)
"""A schedule that is due for longer is late: workers look several times in this."""


async def load(visit: Visit) -> dict[str, Any]:
    found = await pages.schedules(visit.look)
    paused = sum(schedule.paused for schedule in found)
    following = min((s for s in found if not s.paused), key=lambda s: s.next_run, default=None)
    n = len(found)
    head = f"{n} schedule{'s' if n != 1 else ''}{f', {paused} paused' if paused else ''}."
    late = overdue(found, visit.now)
    rest = ""
    if late:
        first = min(late, key=lambda schedule: schedule.next_run)
        wait = coarse(visit.now - first.next_run)
        rest = f"{len(late)} late: {first.name} has been due for {wait}, and no worker has run it."
    elif following:
        rest = f"Next is {following.name}, {relative(following.next_run, visit.now)}."
    sentence = (head if n else "There is no schedule.", rest)
    return {"schedules": found, "late": late, "sentence": sentence}


def overdue(found: list[Schedule], now: datetime) -> list[Schedule]:
    """Those whose time has come and that no worker has run."""
    return [each for each in found if not each.paused and now - each.next_run > _GRACE]


PAGE = Page("Schedules", "/schedules", "schedules.html", load, group=2)
