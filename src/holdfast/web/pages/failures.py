"""Held jobs in groups of one entrypoint and one kind of error; a group is dealt with as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from markupsafe import Markup, escape

from holdfast.lifecycle import Status
from holdfast.monitor import pages
from holdfast.monitor.fingerprint import MARK
from holdfast.web.charts import spark
from holdfast.web.preview import Preview, preview
from holdfast.web.visit import Page, Visit

ACTS = ("requeue", "resolve")
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Line:
    """A group as the table shows it."""

    group: pages.Group
    message: Markup
    spark: Markup
    open: str
    preview: Preview | None


async def load(visit: Visit) -> dict[str, Any]:
    groups = await pages.held_groups(visit.look)
    rates = await pages.rates(visit.look, _DAY, 2 * _DAY)
    day = {
        status: sum(rate.count for rate in rates if rate.status is status)
        for status in (Status.EXCEPTION, Status.QUEUED)
    }
    wanted, do = visit.params.get("group", ""), visit.params.get("do", "")
    act = do if do in ACTS and visit.who.acts else ""
    lines = [await _line(visit, group, act if group.key == wanted else "") for group in groups[:50]]
    total = sum(group.count for group in groups)
    return {
        "lines": lines,
        "total": total,
        "more_groups": max(0, len(groups) - 50),
        "cut": total >= pages.MOST_HELD,
        "failed": day[Status.EXCEPTION],
        "returned": day[Status.QUEUED],
        "sentence": _sentence(groups, total),
        "failed_status": Status.EXCEPTION,
        "queued_status": Status.QUEUED,
        "errands": visit.site.errands.all(),
    }


async def _line(visit: Visit, group: pages.Group, act: str) -> Line:
    hours = group.by_hour(visit.now)
    title = f"{sum(hours)} held in 24 hours, at most {max(hours)} in one"
    look = None
    if act == "requeue":
        look = await preview(visit.site.hf, [job_id for job_id, _ in group.jobs])
    return Line(group, message(group.pattern), spark(hours, title, "hold"), act, look)


def message(text: str) -> Markup:
    """A pattern with its variable parts marked."""
    parts = text.split(MARK)
    return Markup("").join(
        Markup('<span class="var">{}</span>').format(part) if n % 2 else escape(part)
        for n, part in enumerate(parts)
    )


def _sentence(groups: list[pages.Group], total: int) -> tuple[str, str]:
    if not groups:
        return "No job is held.", ""
    jobs = "job waits" if total == 1 else "jobs wait"
    n = len(groups)
    head = f"{total:,} {jobs} for a person, in {n:,} group{'s' if n > 1 else ''}."
    first = groups[0]
    if first.count < 2 or n < 2:
        return head, ""
    kind = first.kind or "one error"
    return head, f"{first.count:,} share one error: {kind} in {first.entrypoint}."


PAGE = Page("Failures", "/failures", "failures.html", load, group=1)
