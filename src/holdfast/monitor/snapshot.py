"""One look at a queue: everything the dashboard shows, read through the public queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from holdfast.app import Holdfast
from holdfast.lifecycle import Status
from holdfast.models import JobId, LogEntry, QueueSize, Statistic

MINUTES = 30
"""How far back the counts and the sparkline go."""

LOOKS = 60
"""How many looks the live sparkline remembers."""

_RUNNING, _FAILURES = 8, 6
_MOST_STATISTICS = 20_000
_ENDED = (Status.SUCCESSFUL, Status.EXCEPTION, Status.FAILED)
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class EntrypointRow:
    """What is in the queue now, and what ended in the last MINUTES."""

    name: str
    queued: int = 0
    picked: int = 0
    failed: int = 0
    waiting_since: datetime | None = None
    """When the oldest job that could be claimed became due."""
    successful: int = 0
    exception: int = 0


@dataclass(frozen=True, slots=True)
class RunningRow:
    id: JobId
    entrypoint: str
    worker: str
    claimed_at: datetime
    heartbeat: datetime
    lease: timedelta
    progress: float | None = None
    """From 0 to 1, of a job that says how far it is."""
    message: str | None = None


@dataclass(frozen=True, slots=True)
class FailureRow:
    id: JobId
    entrypoint: str
    status: Status
    error: str
    at: datetime
    traceback: str | None = None
    """Read only when it is asked for."""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    id: str
    state: str
    running: int
    concurrency: int
    started_at: datetime
    heartbeat: datetime


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    name: str
    expression: str
    timezone: str
    paused: bool
    next_run: datetime
    last_run: datetime | None


@dataclass(frozen=True, slots=True)
class PauseRow:
    name: str
    """Empty where everything is paused."""
    reason: str
    actor: str | None
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a queue at one instant of its own clock."""

    at: datetime
    entrypoints: tuple[EntrypointRow, ...] = ()
    running: tuple[RunningRow, ...] = ()
    failures: tuple[FailureRow, ...] = ()
    workers: tuple[WorkerRow, ...] = ()
    schedules: tuple[ScheduleRow, ...] = ()
    minutes: tuple[int, ...] = ()
    """Jobs that ended in each of the last MINUTES, the running one last."""
    rates: tuple[float, ...] = ()
    """Jobs that ended a second between each look and the one before."""
    pauses: tuple[PauseRow, ...] = ()
    behind: datetime | None = None
    """Since when the counts above lack jobs, because a transaction holds back the statistics."""


async def collect(
    hf: Holdfast, before: Snapshot | None = None, *, tracebacks: bool = False
) -> Snapshot:
    """Look now. With the look before, the sparkline goes on from there.

    `tracebacks` reads the history of each failure that is shown, a few rows by primary key.
    """
    queries = hf.queries
    # First, because it adds what the log has got to the counts that everything else is read beside.
    statistics = await queries.log_statistics(last=MINUTES * _MINUTE, limit=_MOST_STATISTICS)
    at = await queries.now()
    minutes = _minutes(statistics, at)
    behind = await queries.uncounted_since()
    return Snapshot(
        at=at,
        entrypoints=_entrypoints(
            await queries.queue_size(), await queries.oldest_waiting(), statistics
        ),
        running=await _running(hf),
        failures=await _failures(hf, _window(statistics, at, behind), tracebacks=tracebacks),
        workers=await _workers(hf),
        schedules=await _schedules(hf),
        minutes=minutes,
        rates=_rates(minutes, at, before),
        pauses=tuple(
            PauseRow(each.name, each.reason, each.actor, each.until)
            for each in await queries.list_pauses()
        ),
        behind=behind,
    )


def _entrypoints(
    sizes: Sequence[QueueSize],
    waiting: dict[str, datetime],
    statistics: Sequence[Statistic],
) -> tuple[EntrypointRow, ...]:
    counts: Counter[tuple[str, Status]] = Counter()
    for size in sizes:
        counts[size.entrypoint, size.status] += size.count
    for counted in statistics:
        if counted.status in (Status.SUCCESSFUL, Status.EXCEPTION):
            counts[counted.entrypoint, counted.status] += counted.count
    return tuple(
        EntrypointRow(
            name,
            queued=counts[name, Status.QUEUED],
            picked=counts[name, Status.PICKED],
            failed=counts[name, Status.FAILED],
            waiting_since=waiting.get(name),
            successful=counts[name, Status.SUCCESSFUL],
            exception=counts[name, Status.EXCEPTION],
        )
        for name in sorted({name for name, _ in counts})
    )


async def _running(hf: Holdfast) -> tuple[RunningRow, ...]:
    jobs = await hf.queries.list_running_jobs(limit=_RUNNING)
    said = await hf.queries.find_progress([job.id for job in jobs]) if jobs else {}
    return tuple(
        RunningRow(
            job.id, job.entrypoint, job.claimed_by, job.claimed_at, job.heartbeat, job.lease,
            *((found.fraction, found.message) if (found := said.get(job.id)) else ()),
        )
        for job in jobs
        if job.claimed_by and job.claimed_at and job.heartbeat and job.lease
    )  # fmt: skip


async def _failures(
    hf: Holdfast, window: timedelta | None, *, tracebacks: bool
) -> tuple[FailureRow, ...]:
    held = await hf.queries.list_failed_jobs(limit=_FAILURES)
    found = [
        FailureRow(job.id, job.entrypoint, job.status, job.last_error or "", job.held_at)
        for job in held
        if job.held_at
    ]
    if window is not None:
        entries = await hf.queries.queue_log(status=Status.EXCEPTION, limit=_FAILURES, last=window)
        found += [
            FailureRow(entry.job_id, entry.entrypoint, entry.status, _error(entry), entry.created)
            for entry in entries
        ]
    latest = sorted(found, key=lambda row: (row.at, row.id), reverse=True)[:_FAILURES]
    if tracebacks:
        latest = [replace(row, traceback=await _traceback(hf, row)) for row in latest]
    return tuple(latest)


async def _traceback(hf: Holdfast, row: FailureRow) -> str | None:
    """The last one in the history of the job, up to the failure itself."""
    records = [
        entry.traceback
        for entry in await hf.queries.job_history(row.id)
        if entry.traceback and entry.created <= row.at
    ]
    text = records[-1].get("traceback") if records else None
    return None if text is None else str(text)


def _window(
    statistics: Sequence[Statistic], at: datetime, behind: datetime | None
) -> timedelta | None:
    """How far back the log must be read for enough exceptions: a whole log has no index for it.

    What the counts lack may hold exceptions as well; of that the last minute is always read.
    """
    seen, reached = 0, None
    for counted in statistics:
        if seen >= _FAILURES and counted.bucket != reached:
            break
        if counted.status is Status.EXCEPTION:
            seen, reached = seen + counted.count, counted.bucket
    if reached is None:
        return None if behind is None else _MINUTE
    # A minute more, because the clock has moved on since.
    return at - reached + _MINUTE


def _error(entry: LogEntry) -> str:
    record = entry.traceback or {}
    told = (record.get("exception_type"), record.get("exception_message"))
    return ": ".join(str(part) for part in told if part) or entry.reason or ""


async def _workers(hf: Holdfast) -> tuple[WorkerRow, ...]:
    return tuple(
        WorkerRow(
            worker.id,
            worker.state,
            worker.running,
            worker.concurrency,
            worker.started_at,
            worker.heartbeat,
        )
        for worker in await hf.queries.list_workers()
    )


async def _schedules(hf: Holdfast) -> tuple[ScheduleRow, ...]:
    return tuple(
        ScheduleRow(
            schedule.name,
            schedule.expression,
            schedule.timezone,
            schedule.paused,
            schedule.next_run,
            schedule.last_run,
        )
        for schedule in await hf.schedules.list()
    )


def _minutes(statistics: Sequence[Statistic], at: datetime) -> tuple[int, ...]:
    ended: Counter[int] = Counter()
    for counted in statistics:
        if counted.status in _ENDED:
            ended[(at - counted.bucket) // _MINUTE] += counted.count
    return tuple(ended[ago] for ago in reversed(range(MINUTES)))


def _rates(minutes: tuple[int, ...], at: datetime, before: Snapshot | None) -> tuple[float, ...]:
    if before is None or at <= before.at:
        return ()
    passed = _whole_minute(at) - _whole_minute(before.at)
    known = (*before.minutes[passed:], *[0] * min(passed, MINUTES))
    ended = sum(max(0, now - then) for now, then in zip(minutes, known, strict=False))
    return (*before.rates, ended / (at - before.at).total_seconds())[-LOOKS:]


def _whole_minute(at: datetime) -> int:
    return int(at.timestamp() // 60)
