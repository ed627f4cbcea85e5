"""Where a job stands, in a few words: what the list says of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from holdfast.breaker import Breaker, BreakerState
from holdfast.lifecycle import Status
from holdfast.models import Job, Pause, WorkerInfo
from holdfast.monitor import pages
from holdfast.monitor.reader import Look
from holdfast.web.words import clock, coarse


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a job's progress depends on, besides itself."""

    workers: tuple[WorkerInfo, ...]
    served: frozenset[str]
    silent: frozenset[str]
    pauses: tuple[Pause, ...] = ()
    shut: Mapping[str, str] = field(default_factory=dict)
    """Of the entrypoints whose circuit breaker lets nothing through, which one, and until when."""
    full: frozenset[str] = frozenset()
    """Entrypoints without a free slot of their own, such as a thread, in any worker."""

    def why_all_wait(self, entrypoint: str) -> str:
        """The reason that all jobs of an entrypoint share, as a sentence; empty without one."""
        if pause := pages.paused(self.pauses, entrypoint):
            return f"Those that wait are paused by {pause.actor or 'unknown'}: {pause.reason}."
        if entrypoint not in self.served:
            return "Those that wait cannot start: no live worker serves the entrypoint."
        if entrypoint in self.shut:
            return f"Those that wait cannot start: {self.shut[entrypoint]}."
        return ""


async def surroundings(look: Look, now: datetime, *, open_breakers: bool) -> Surroundings:
    found = await pages.workers(look)
    breakers = await pages.breakers(look) if open_breakers else []
    return Surroundings(
        tuple(found),
        frozenset(pages.served(found, now)),
        frozenset(worker.id for worker in found if pages.silent(worker, now)),
        tuple(await pages.pauses(look)),
        _shut(breakers, pages.behind(found), now),
        _full([worker for worker in found if worker.alive_at(now)]),
    )


def _shut(
    breakers: Sequence[Breaker], behind: Mapping[str, Sequence[str]], now: datetime
) -> dict[str, str]:
    said: dict[str, str] = {}
    for breaker in breakers:
        if breaker.state is BreakerState.CLOSED:
            continue
        again = breaker.tries_again_at
        until = f" until {clock(again, now)}" if again and again > now else ""
        words = f"breaker {breaker.name} is {breaker.state.replace('_', ' ')}{until}"
        said |= dict.fromkeys(behind.get(breaker.name, ()), words)
    return said


def _full(workers: Sequence[WorkerInfo]) -> frozenset[str]:
    free = {
        name
        for worker in workers
        for name in worker.entrypoints
        if name not in worker.full_entrypoints
    }
    return frozenset(name for worker in workers for name in worker.full_entrypoints) - free


def standing(job: Job, around: Surroundings, now: datetime) -> str:
    match job.status:
        case Status.PICKED:
            return _leased(job, around, now)
        case Status.FAILED:
            return job.last_error or "all attempts are spent"
        case _:
            return _waiting(job, around, now)


def short(worker: str | None) -> str:
    """A worker without the mark that tells two with one host and pid apart."""
    parts = (worker or "").split(":")
    return ":".join(parts[:2]) if len(parts) == 3 else worker or ""


def _leased(job: Job, around: Surroundings, now: datetime) -> str:
    if job.heartbeat is None or job.lease is None or job.claimed_at is None:
        return "its lease is incomplete"
    end = job.heartbeat + job.lease
    if end < now:
        return f"{short(job.claimed_by)} is silent, recovery is due"
    if job.claimed_by in around.silent:
        quiet = coarse(now - job.heartbeat)
        return f"{short(job.claimed_by)} is silent for {quiet}, recovery at {clock(end, now)}"
    return f"on {short(job.claimed_by)} for {coarse(now - job.claimed_at)}"


def _waiting(job: Job, around: Surroundings, now: datetime) -> str:
    parts = []
    if job.execute_after > now:
        parts.append(
            f"due in {coarse(job.execute_after - now)}, at {clock(job.execute_after, now)}"
        )
    if pause := pages.paused(around.pauses, job.entrypoint):
        until = f" until {clock(pause.until, now)}" if pause.until else ""
        parts.append(f"paused{until} by {pause.actor or 'unknown'}: {pause.reason}")
    parts += _kept_back(job, around)
    if not parts:
        late = now - job.execute_after
        parts.append("due now" if late < timedelta(seconds=1) else f"due for {coarse(late)}")
    if job.last_error and job.attempts:
        parts.append(f"after {job.last_error}")
    return "; ".join(parts)


def _kept_back(job: Job, around: Surroundings) -> list[str]:
    """What keeps a job that is due from being claimed."""
    if job.entrypoint not in around.served:
        return ["no live worker serves it"]
    parts = []
    if job.recoveries:
        times = f"{job.recoveries} worker{'s' if job.recoveries > 1 else ''}"
        parts.append(f"runs with few others: {times} died of it")
    if job.entrypoint in around.shut:
        parts.append(f"waits: {around.shut[job.entrypoint]}")
    elif job.entrypoint in around.full:
        parts.append("waits for a slot of its entrypoint, such as a thread")
    return parts
