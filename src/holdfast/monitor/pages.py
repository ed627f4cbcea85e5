"""What the pages read: bounded statements, and their rows as values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.breaker import Breaker
from holdfast.histogram import Histogram
from holdfast.lifecycle import Status
from holdfast.models import Act, LogEntry, Pause, Progress, Schedule, WorkerInfo
from holdfast.monitor.reader import Look
from holdfast.settings import WorkerSettings
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.breakers import breaker_of

SAMPLE = 1000
"""At most this many waiting jobs of an entrypoint are counted."""
_UNREPORTED = WorkerSettings().heartbeat_timeout


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits of one entrypoint, counted up to SAMPLE."""

    due: int = 0
    later: int = 0
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """What one worker runs of one entrypoint."""

    worker: str
    entrypoint: str
    count: int
    since: datetime
    first_end: datetime


@dataclass(frozen=True, slots=True)
class Rate:
    """How many leases ended in a stretch of time."""

    at: datetime
    status: Status
    count: int
    busy: timedelta
    entrypoint: str = ""


@dataclass(frozen=True, slots=True)
class Counts:
    """Live jobs by state, each counted up to 10,000; `cut` where the count ended early."""

    waiting: int
    leased: int
    held: int
    cut: bool


async def waiting(look: Look) -> dict[str, Waiting]:
    return {
        name: Waiting(due, later, looked > SAMPLE)
        for name, due, later, looked in await look.run("page_entrypoints")
    }


async def oldest(look: Look) -> dict[str, datetime]:
    return {row[0]: row[1] for row in await look.run("oldest")}


async def running(look: Look) -> list[Running]:
    return [Running(*row) for row in await look.run("page_running")]


async def workers(look: Look) -> list[WorkerInfo]:
    return [WorkerInfo(*row) for row in await look.run("workers")]


def patience(worker: WorkerInfo) -> timedelta:
    return worker.heartbeat_timeout or _UNREPORTED


def silent(worker: WorkerInfo, now: datetime) -> bool:
    """Whether others may have its jobs soon: it reports three times in each heartbeat_timeout."""
    return now - worker.heartbeat > max(patience(worker) * 0.6, timedelta(seconds=5))


def served(found: Iterable[WorkerInfo], now: datetime) -> set[str]:
    """The entrypoints that some live worker runs."""
    return {
        name
        for worker in found
        if now - worker.heartbeat < patience(worker)
        for name in worker.entrypoints
    }


def behind(found: Iterable[WorkerInfo]) -> dict[str, list[str]]:
    """The entrypoints behind each circuit breaker, as workers report them."""
    pairs = {
        (name, entrypoint)
        for worker in found
        for entrypoint, name in zip(worker.entrypoints, worker.breaker_names, strict=False)
        if name
    }
    groups = defaultdict[str, list[str]](list)
    for name, entrypoint in sorted(pairs):
        groups[name].append(entrypoint)
    return groups


async def breakers(look: Look) -> list[Breaker]:
    found = await look.run("breaker_read", names=None)
    return [breaker_of(row[2:]) for row in found if row[1] is not None]


async def pauses(look: Look) -> list[Pause]:
    return [Pause(*row[:5]) for row in await look.run("pauses")]


def paused(found: Iterable[Pause], name: str) -> Pause | None:
    """The pause that keeps jobs of this name from being claimed."""
    return next((pause for pause in found if pause.covers(name)), None)


async def acts(look: Look, limit: int) -> list[Act]:
    """What people did to entrypoints, schedules and breakers, newest first."""
    return [Act(*row) for row in await look.run("acts", limit=limit)]


async def schedules(look: Look) -> list[Schedule]:
    return [rows.schedule(row) for row in await look.run("schedule_all")]


async def rates(
    look: Look, since: timedelta, width: timedelta, entrypoint: str | None = None
) -> list[Rate]:
    found = await look.recent("page_rates", since=since, width=width, entrypoint=entrypoint)
    return [Rate(row[0], rows.status(row[1]), row[2], row[3]) for row in found]


async def rates_of(look: Look, since: timedelta, width: timedelta) -> list[Rate]:
    """The same for each entrypoint."""
    found = await look.recent("page_rates_of", since=since, width=width)
    return [Rate(row[1], rows.status(row[2]), row[3], row[4], row[0]) for row in found]


async def waits(look: Look, since: timedelta, width: timedelta) -> dict[datetime, Histogram]:
    """How long jobs waited for their claim, by stretch of time."""
    found: dict[datetime, list[int]] = {}
    for at, place, count in await look.recent("page_waits", since=since, width=width):
        cells = found.setdefault(at, [])
        cells.extend([0] * (place + 1 - len(cells)))
        cells[place] += count
    return {at: tuple(cells) for at, cells in found.items()}


async def progress(look: Look, ids: Sequence[int]) -> dict[int, Progress]:
    """How far these jobs are, of those that say so."""
    found = await look.run("progress", ids=list(ids)) if ids else ()
    return {row[0]: Progress(row[1], row[2], row[3]) for row in found}


async def counts(look: Look, entrypoint: str | None) -> Counts:
    waits, leased, looked, held = await look.one("page_count", entrypoint=entrypoint)
    return Counts(waits, leased, held, looked > 10_000)


_MINUTE = timedelta(minutes=1)


async def log_page(
    look: Look,
    now: datetime,
    *,
    limit: int,
    before: tuple[datetime, int] | None = None,
    status: Status | None = None,
    entrypoint: str | None = None,
    worker: str | None = None,
    error: str | None = None,
    by_person: bool = False,
) -> tuple[list[LogEntry], datetime | None]:
    """A page of the log, newest first, and down to which minute it looked; None: to the end.

    The statistics say which minutes have rows of a kind, so that the log is read nowhere else.
    """
    start, start_id = before or (now + _MINUTE, 2**62)
    kind = {"status": status, "entrypoint": entrypoint}
    counted = await look.run("page_log_minutes", before=start, **kind)
    minutes = _minutes(start, now, [(row[0], row[1]) for row in counted], limit)
    found = await look.run(
        "page_log",
        minutes=minutes,
        before=start,
        before_id=start_id,
        worker=worker,
        error=error,
        by_person=by_person,
        limit=limit,
        **kind,
    )
    entries = [rows.log_entry(row) for row in found]
    more = (len(counted) > 0 and counted[-1][0] < minutes[-1]) or len(counted) == _MOST_MINUTES
    reached = minutes[-1] if minutes and more else None
    return entries, reached


_MOST_MINUTES = 60


def _minutes(
    start: datetime, now: datetime, counted: Sequence[tuple[datetime, int]], limit: int
) -> list[datetime]:
    """The newest minutes that hold enough rows, and those of late that may not be counted yet."""
    whole = start.replace(second=0, microsecond=0)
    late = now - 3 * _MINUTE
    found = [whole - n * _MINUTE for n in range(4) if whole - n * _MINUTE >= late]
    seen = 0
    for minute, count in counted:
        if seen > limit:
            break
        if minute not in found:
            found.append(minute)
        seen += count
    return sorted(found, reverse=True)
