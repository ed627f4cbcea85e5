"""Failures in groups of one entrypoint and one kind of error; held jobs are dealt with by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from holdfast.lifecycle import Status
from holdfast.monitor.failures import (
    MOST_FAILURES,
    MOST_GROUPS,
    Group,
    ended_groups,
    held_groups,
    with_errors,
)
from holdfast.monitor.fingerprint import MARK
from holdfast.stores.postgres.pages import MOST_HELD
from holdfast.web.charts import spark
from holdfast.web.preview import Preview, preview
from holdfast.web.visit import Page, Visit
from holdfast.web.words import cut, stopped

ACTS = ("requeue", "resolve")


@dataclass(frozen=True, slots=True)
class Kind:
    """What a tab of the page is about."""

    name: str
    status: Status
    shape: str
    label: str
    word: str
    """Of one failure."""


KINDS = (
    Kind("", Status.FAILED, "held", "Held", "held"),
    Kind("failed", Status.EXCEPTION, "exception", "Failed, 24 h", "failed"),
    Kind("retried", Status.QUEUED, "retry", "Retried, 24 h", "retried"),
)
_ENDED = tuple(kind.status for kind in KINDS[1:])


@dataclass(frozen=True, slots=True)
class Line:
    """A group as the table shows it."""

    group: Group
    message: Markup
    spark: Markup
    open: str = ""
    preview: Preview | None = None


async def load(visit: Visit) -> dict[str, Any]:
    held = await held_groups(visit.look)
    ended = await ended_groups(visit.look, _ENDED)
    found = {Status.FAILED: held, **ended}
    kind = next((k for k in KINDS if k.name == visit.params.get("kind", "")), KINDS[0])
    groups = found[kind.status]
    most = MOST_HELD if groups is held else MOST_FAILURES
    counts = {status: sum(group.count for group in some) for status, some in found.items()}
    shown = await with_errors(visit.look, groups[:MOST_GROUPS])
    return {
        "kind": kind,
        "kinds": [(each, counts[each.status]) for each in KINDS],
        "lines": [await _line(visit, group, kind) for group in shown],
        "more_groups": max(0, len(groups) - MOST_GROUPS),
        "most": most if counts[kind.status] >= most else None,
        "failed": counts[Status.EXCEPTION],
        "sentence": _sentence(shown, len(groups), counts[kind.status], kind),
        "errands": visit.site.errands.all(),
    }


async def _line(visit: Visit, group: Group, kind: Kind) -> Line:
    hours = group.by_hour(visit.now)
    title = f"{sum(hours)} {kind.word} in 24 hours, at most {max(hours)} in one"
    cls = {"held": "hold", "exception": "bad"}.get(kind.shape, "again")
    line = Line(group, message(group.pattern), spark(hours, title, cls))
    act = visit.params.get("do", "")
    if act not in ACTS or not visit.who.acts or group.key != visit.params.get("group"):
        return line
    if kind.status is not Status.FAILED:
        return line
    look = await preview(visit.site.hf, group.jobs) if act == "requeue" else None
    return Line(line.group, line.message, line.spark, act, look)


def message(text: str) -> Markup:
    """A pattern with its variable parts marked."""
    parts = text.split(MARK)
    return Markup("").join(
        Markup('<span class="var">{}</span>').format(part) if n % 2 else escape(part)
        for n, part in enumerate(parts)
    )


def _sentence(groups: Sequence[Group], n: int, total: int, kind: Kind) -> tuple[str, str]:
    if not groups:
        words = {"held": "is held", "failed": "failed", "retried": "was retried"}[kind.word]
        return f"No job {words}{'' if kind.word == 'held' else ' for an error in 24 hours'}.", ""
    things = {"held": "job", "failed": "job", "retried": "attempt"}[kind.word]
    what = {"held": "wait for a person", "failed": "failed for good", "retried": "were retried"}
    verb = what[kind.word]
    if total == 1:
        verb = verb.replace("wait ", "waits ").replace("were ", "was ")
    plural = "" if total == 1 else "s"
    head = f"{total:,} {things}{plural} {verb}, in {n:,} group{'s' if n > 1 else ''}."
    first = groups[0]
    if first.count < 2 or n < 2:
        return head, ""
    error = first.kind or "one error"
    name = cut(first.entrypoint, 60)
    return head, stopped(f"{first.count:,} share one error: {error} in {name}")


PAGE = Page("Failures", "/failures", "failures.html", load, group=1)
