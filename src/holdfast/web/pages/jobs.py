"""The list of jobs: filters in the address, pages by key, acts on a selection or on the filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup

from holdfast.lifecycle import FINAL, SPOKEN, Status
from holdfast.models import Job, LogEntry, Progress, WorkerInfo
from holdfast.monitor import pages
from holdfast.monitor.chosen import ROWS, WINDOW, Chosen, find, reach
from holdfast.web.bulk import is_id, sheet
from holdfast.web.charts import far
from holdfast.web.standing import Surroundings, standing, surroundings
from holdfast.web.visit import MAX_ID, Page, Visit, text
from holdfast.web.words import about, error_line, number, span

SINCE = {
    "15m": ("15 minutes", timedelta(minutes=15)),
    "1h": ("hour", timedelta(hours=1)),
    "24h": ("day", timedelta(days=1)),
    "7d": ("week", timedelta(days=7)),
}
_LIVE = (Status.QUEUED, Status.PICKED, Status.FAILED)
_TOP = 2**62
_PASSING = ("do", "id", "all", "top")
"""Parameters of an act, which the next one must not inherit."""
_ENDED = {
    Status.SUCCESSFUL: "succeeded",
    Status.EXCEPTION: "failed",
    Status.CANCELED: "were canceled",
    Status.DELETED: "were deleted",
}


@dataclass(frozen=True, slots=True)
class Tab:
    """A state to choose."""

    status: Status | None
    href: str
    count: str
    current: bool


@dataclass(frozen=True, slots=True)
class Line:
    """A job, and where it stands."""

    id: int
    status: Status
    entrypoint: str
    why: str
    key: str
    tries: str
    at: datetime
    live: bool = True
    progress: Markup | None = None


def chosen_of(params: Mapping[str, str]) -> Chosen:
    """The filter that an address names."""
    header, _, value = (text(params, "header") or "").partition("=")
    since = SINCE.get(params.get("since", ""))
    return Chosen(
        status=state(params),
        entrypoint=text(params, "entrypoint"),
        worker=text(params, "worker"),
        error=text(params, "error"),
        key=text(params, "key"),
        header=header.strip() or None,
        header_value=value.strip() or None,
        since=since[1] if since else None,
    )


def state(params: Mapping[str, str]) -> Status | None:
    """By the word that people read, or by the state's own."""
    asked = params.get("status", "")
    spoken = {word: status for status, word in SPOKEN.items()}
    return spoken.get(asked) or (Status(asked) if asked in set(Status) else None)


async def load(visit: Visit) -> dict[str, Any]:
    wanted = chosen_of(visit.params)
    ended = wanted.status in FINAL
    counts = await pages.counts(visit.look, wanted.entrypoint)
    around = await surroundings(visit.look, visit.now, open_breakers=visit.nav.open > 0)
    listed = await (_ended if ended else _live)(visit, wanted, around)
    rates = await pages.rates(
        visit.look, timedelta(days=1), timedelta(days=2), entrypoint=wanted.entrypoint
    )
    top = max((line.id for line in listed["lines"]), default=0)
    first_page = not visit.params.get("before") and not ended
    return {
        **listed,
        "wanted": wanted,
        "ended": ended,
        "tabs": _tabs(visit, wanted, counts),
        "ended_tabs": _ended_tabs(visit, wanted, rates),
        "since": SINCE,
        "sentence": _sentence(visit, wanted, counts, around),
        "entrypoints": _names(around.workers, wanted.entrypoint, await pages.oldest(visit.look)),
        "workers": sorted({w.id for w in around.workers} | {wanted.worker or ""} - {""}),
        "more_filters": sum(
            value is not None for value in (wanted.worker, wanted.error, wanted.key, wanted.header)
        ),
        "newer": await _newer(visit, top) if first_page and wanted == Chosen() else 0,
        "top": top,
        "filtered": wanted != Chosen(),
        "do": visit.params.get("do", "") if visit.who.acts else "",
        "sheet": await sheet(visit, wanted),
        "selected": {int(word) for word in visit.params.getlist("id") if is_id(word)},
        "kept": [(k, v) for k, v in visit.params.multi_items() if k not in _PASSING],
    }


async def _newer(visit: Visit, top: int) -> int:
    """How many jobs came since the page was loaded."""
    since = visit.integer("top", top) or 0
    [found] = await visit.look.one("page_newer", after=since)
    return int(found)


async def _live(visit: Visit, wanted: Chosen, around: Surroundings) -> dict[str, Any]:
    before = visit.integer("before", _TOP) or _TOP
    found = await find(visit.look, wanted, before=before, limit=ROWS + 1)
    shown = found[:ROWS]
    leased = [job.id for job in shown if job.status is Status.PICKED]
    progress = await pages.progress(visit.look, leased)
    lines = [_line(job, around, visit.now, progress.get(job.id)) for job in shown]
    older = None
    looked = 0
    if len(found) > ROWS:
        older = lines[-1].id
    elif wanted.scans:
        bottom, looked = await reach(visit.look, before)
        older = bottom if looked == WINDOW else None
    return {
        "lines": lines,
        # How far each running job is, in the rows that are on the page.
        "live_cells": {f"live-far-{job_id}": str(far(said)) for job_id, said in progress.items()},
        "older": None if older is None else visit.address.with_query(before=older, top=None),
        "looked": looked if older is not None and len(found) <= ROWS else 0,
    }


def _line(job: Job, around: Surroundings, now: datetime, progress: Progress | None) -> Line:
    cap = f" of {job.max_attempts}" if job.max_attempts else ""
    return Line(
        job.id,
        job.status,
        job.entrypoint,
        standing(job, around, now),
        job.dedupe_key or "",
        f"{job.attempts}{cap}",
        job.created,
        progress=far(progress) if progress else None,
    )


async def _ended(visit: Visit, wanted: Chosen, around: Surroundings) -> dict[str, Any]:
    """Jobs that have left the queue, as the log tells of their last lease."""
    entries, reached = await pages.log_page(
        visit.look,
        visit.now,
        limit=ROWS + 1,
        before=place(visit.params.get("before", "")),
        status=wanted.status,
        entrypoint=wanted.entrypoint,
        worker=wanted.worker,
        error=wanted.error,
    )
    older = None
    if len(entries) > ROWS:
        older = mark(entries[ROWS - 1].created, entries[ROWS - 1].id)
    elif reached is not None:
        older = mark(reached, 0)
    return {
        "lines": [_ended_line(entry) for entry in entries[:ROWS]],
        "older": None if older is None else visit.address.with_query(before=older),
        "looked": 0,
    }


def _ended_line(entry: LogEntry) -> Line:
    ran = "" if entry.claimed_at is None else f"after {span(entry.created - entry.claimed_at)}"
    who = f"on {entry.claimed_by}" if entry.claimed_by else f"by {entry.actor or 'unknown'}"
    why = error_line(entry) or " ".join(part for part in (who, ran) if part)
    return Line(
        entry.job_id, entry.status, entry.entrypoint, why, "", str(entry.attempt), entry.created,
        live=False,
    )  # fmt: skip


def mark(at: datetime, row: int) -> str:
    """A place in the log, for an address."""
    return f"{at.timestamp():.6f}-{row}"


def place(text: str) -> tuple[datetime, int] | None:
    seconds, _, row = text.partition("-")
    try:
        at, number = datetime.fromtimestamp(float(seconds), UTC), int(row)
    except (ValueError, OverflowError, OSError):
        return None
    return (at, number) if 0 <= number <= MAX_ID else None


def _tabs(visit: Visit, wanted: Chosen, counts: pages.Counts) -> list[Tab]:
    numbers = {
        Status.QUEUED: counts.waiting,
        Status.PICKED: counts.leased,
        Status.FAILED: counts.held,
    }
    tabs = [_tab(visit, wanted, status, number(numbers[status])) for status in _LIVE]
    if counts.cut:
        # The first rows say nothing about the rest.
        tabs = [_tab(visit, wanted, status, "") for status in _LIVE[:2]] + tabs[2:]
    return tabs


def _tab(visit: Visit, wanted: Chosen, status: Status, count: str) -> Tab:
    href = visit.address.with_query(status=SPOKEN[status], before=None, top=None)
    return Tab(status, href, count, wanted.status is status)


def _ended_tabs(visit: Visit, wanted: Chosen, rates: Sequence[pages.Rate]) -> list[Tab]:
    totals = dict.fromkeys(FINAL, 0)
    for rate in rates:
        if rate.status in totals:
            totals[rate.status] += rate.count
    return [_tab(visit, wanted, status, about(count)) for status, count in totals.items()]


def _sentence(
    visit: Visit, wanted: Chosen, counts: pages.Counts, around: Surroundings
) -> tuple[str, str]:
    total = counts.waiting + counts.leased + counts.held
    if wanted.entrypoint is None:
        many = about(visit.nav.live) if counts.cut else f"{total:,}"
    else:
        many = "More than 10,000" if counts.cut else f"{total:,}"
    noun = "live job" if total == 1 else "live jobs"
    if wanted.status in FINAL:
        return f"Jobs that {_ENDED[wanted.status]}.", "Their payloads are gone with them."
    if wanted.entrypoint is None:
        return f"{many} {noun}.", ""
    head = f"{many} {noun} of {wanted.entrypoint}."
    return head, around.why_all_wait(wanted.entrypoint) if counts.waiting else ""


def _names(
    workers: Sequence[WorkerInfo], chosen: str | None, waiting: Mapping[str, object]
) -> list[str]:
    found = {name for worker in workers for name in worker.entrypoints} | set(waiting)
    return sorted(found | ({chosen} if chosen else set()))


PAGE = Page("Jobs", "/jobs", "jobs.html", load, group=1)
