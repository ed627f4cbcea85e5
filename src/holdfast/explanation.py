"""Why a job does not run. Reasons are pure functions over one value; the first that holds wins."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from holdfast.breaker import Breaker, BreakerState
from holdfast.lifecycle import (
    FINAL,
    LEAST_RECOVERIES_CAP,
    RETIRE_LAST_RETRY,
    RETIRE_STALE,
    SPOKEN,
    TRANSITIONS,
    Verb,
)
from holdfast.shell import shell_word

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.models import Job, LogEntry, Pause, WorkerInfo

MOST_COUNTED = 1000
"""Looks at the backlog end here, so a larger number is "at least 1,000"."""


_DEFAULT_MAX_RECOVERIES = 3
_PICKED = TRANSITIONS[Verb.CLAIM].target
_HELD = RETIRE_STALE.target


class Code(StrEnum):
    """Why a job does not run. The words are a promise to scripts."""

    ENDED = "ended"
    RUNNING = "running"
    WORKER_SILENT = "worker_silent"
    HELD = "held"
    ATTEMPTS_SPENT = "attempts_spent"
    CRASH_LOOP = "crash_loop"
    NOT_DUE = "not_due"
    PAUSED = "paused"
    NO_WORKER = "no_worker"
    LOCKED = "locked"
    BREAKER_OPEN = "breaker_open"
    LIMIT_FULL = "limit_full"
    RUNS_ALONE = "runs_alone"
    SLOTS_FULL = "slots_full"
    BEHIND = "behind"
    DUE = "due"
    NOTHING_WAITS = "nothing_waits"
    SCHEMA = "schema"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job is not running, in one sentence, and what would change that."""

    code: Code
    sentence: str
    until: datetime | None = None
    """The next instant at which this may change."""
    command: str | None = None
    """The command that changes it."""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lock:
    """The session that has locked a row."""

    pid: int
    age: timedelta | None
    query: str | None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The facts between a queued job and its claim."""

    before: int = 0
    """Jobs of its entrypoint that come first, counted up to MOST_COUNTED."""
    running_under_limit: tuple[int, ...] | None = None
    """None where the entrypoint has no fleet-wide limit."""
    lock: Lock | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that an explanation is made from, read at one time."""

    now: datetime
    job_id: int
    job: Job | None
    history: Sequence[LogEntry] = ()
    workers: Sequence[WorkerInfo] = ()
    pauses: Sequence[Pause] = ()
    breakers: Sequence[Breaker] = ()
    behind_breaker: Mapping[str, str] = field(default_factory=dict)
    """The breaker of each entrypoint that the asking program has registered."""
    entrypoints: Sequence[str] = ()
    surroundings: Surroundings = Surroundings()

    @property
    def queued(self) -> Job:
        if self.job is None:
            raise ValueError("the job has left the queue")
        return self.job

    def serving(self) -> list[WorkerInfo]:
        """Live workers that serve the entrypoint of the job."""
        name = self.queued.entrypoint
        return [each for each in self.workers if self.alive(each) and name in each.entrypoints]

    def alive(self, worker: WorkerInfo) -> bool:
        return worker.alive_at(self.now)


Reason = Callable[[Facts], Explanation | None]


def explain(facts: Facts) -> Explanation:
    """Return the first reason that holds."""
    if facts.job is None:
        return _ended(facts)
    reasons = {_PICKED: (_claimed,), _HELD: (_held,)}.get(facts.job.status, _QUEUED)
    return next(found for reason in reasons if (found := reason(facts)) is not None)


def nothing_waits(entrypoint: str, facts: Sequence[WorkerInfo]) -> Explanation:
    """Explain an entrypoint without a waiting job."""
    served = any(entrypoint in worker.entrypoints for worker in facts)
    known = [name for worker in facts for name in worker.entrypoints]
    near = () if served else tuple(nearest(entrypoint, known))
    meant = f"; did you mean {', '.join(near)}?" if near else ""
    return Explanation(
        Code.NOTHING_WAITS,
        f"No job of {entrypoint} waits{meant}",
        details={"served": served, "nearest": near},
    )


def _ended(facts: Facts) -> Explanation:
    last = next((e for e in reversed(facts.history) if e.status in FINAL), facts.history[-1])
    by = f" by {last.actor}" if last.actor else ""
    why = f" ({last.reason})" if last.reason else ""
    return Explanation(
        Code.ENDED,
        f"It has ended: {SPOKEN[last.status]} {_since(facts, last.created)} ago{by}{why}.",
        details={"status": str(last.status), "at": last.created, "actor": last.actor},
    )


def _claimed(facts: Facts) -> Explanation:
    job = facts.queued
    heartbeat, lease = job.heartbeat or facts.now, job.lease or timedelta(0)
    expires = heartbeat + lease
    worker = next((each for each in facts.workers if each.id == job.claimed_by), None)
    details = {"worker": job.claimed_by, "heartbeat": heartbeat, "lease_until": expires}
    if expires <= facts.now or (worker is not None and not facts.alive(worker)):
        left = bool(facts.serving())
        recovery = "when its lease ends" if left else "by one that does, after its lease has ended"
        nobody = "" if left else f"No live worker serves {job.entrypoint}. "
        return Explanation(
            Code.WORKER_SILENT,
            f"Its worker {job.claimed_by} looks dead: the last heartbeat is "
            f"{_since(facts, heartbeat)} old. {nobody}It is recovered {recovery}.",
            until=max(expires, facts.now) if left else None,
            command=f"holdfast workers release {_name(job.claimed_by or '')}",
            details=details,
        )
    return Explanation(
        Code.RUNNING,
        f"{job.claimed_by} runs it, with a heartbeat {_since(facts, heartbeat)} ago.",
        until=expires,
        command=f"holdfast cancel {job.id}",
        details=details,
    )


def _held(facts: Facts) -> Explanation:
    job = facts.queued
    reason = held_reason(facts.history)
    code, why = {
        RETIRE_LAST_RETRY.reason: (Code.ATTEMPTS_SPENT, f"its {job.attempts} attempts are spent"),
        RETIRE_STALE.reason: (Code.CRASH_LOOP, "workers died while they ran it"),
    }.get(reason, (Code.HELD, f"its handler failed: {job.last_error or 'no error is known'}"))
    return Explanation(
        code,
        f"It is held for a person, because {why}.",
        command=f"holdfast requeue {job.id}",
        details={"held_at": job.held_at, "error": job.last_error, "reason": reason},
    )


def held_reason(history: Sequence[LogEntry]) -> str | None:
    """Return why a worker held the job. People may have edited it since, with reasons of theirs."""
    by_worker = (entry.reason for entry in reversed(history) if entry.actor is None)
    return next((reason for reason in by_worker if reason), None)


def _name(name: str) -> str:
    return shell_word(name, positional=True)


def _paused(facts: Facts) -> Explanation | None:
    return paused(facts.queued.entrypoint, facts.pauses)


def paused(entrypoint: str, pauses: Sequence[Pause]) -> Explanation | None:
    """Explain which pause keeps jobs of an entrypoint, or rows of a table queue, from a claim."""
    for pause in pauses:
        if pause.covers(entrypoint):
            what = pause.name or "everything"
            by = f" by {pause.actor}" if pause.actor else ""
            return Explanation(
                Code.PAUSED,
                f"{what} is paused{by}: {pause.reason}.",
                until=pause.until,
                command=f"holdfast resume {_name(pause.name) if pause.name else '--all'}",
                details=pause._asdict(),
            )
    return None


def _not_due(facts: Facts) -> Explanation | None:
    due = facts.queued.execute_after
    if due <= facts.now:
        return None
    return Explanation(
        Code.NOT_DUE, f"It is due in {_words(due - facts.now)}.", until=due, details={"due": due}
    )


def _no_worker(facts: Facts) -> Explanation | None:
    if facts.serving():
        return None
    name = facts.queued.entrypoint
    alive = [worker for worker in facts.workers if facts.alive(worker)]
    known = sorted({served for worker in alive for served in worker.entrypoints})
    near = list(nearest(name, known))
    meant = f" Names like it: {', '.join(near)}." if near else ""
    command = (
        f"holdfast move {facts.job_id} --to {shell_word(near[0])}" if near else "holdfast workers"
    )
    return Explanation(
        Code.NO_WORKER,
        f"No live worker serves {name}.{meant}",
        command=command,
        details={"nearest": near, "workers": len(alive)},
    )


def _locked(facts: Facts) -> Explanation | None:
    lock = facts.surroundings.lock
    if lock is None:
        return None
    age = "" if lock.age is None else f", in a transaction of {_words(lock.age)}"
    return Explanation(
        Code.LOCKED,
        f"Its row is locked by the session with pid {lock.pid}{age}.",
        command=f'psql -c "select pg_terminate_backend({lock.pid})"',
        details={"pid": lock.pid, "age": lock.age, "query": lock.query},
    )


def _breaker_open(facts: Facts) -> Explanation | None:
    name = facts.queued.entrypoint
    # Workers report the breaker of an entrypoint, but for those of an older version.
    reported = (worker.breaker_of(name) for worker in facts.serving())
    wanted = facts.behind_breaker.get(name) or next((each for each in reported if each), None)
    names = {wanted} if wanted else {name}
    for breaker in facts.breakers:
        if breaker.name in names and breaker.state is not BreakerState.CLOSED:
            held = f", held by {breaker.actor}" if breaker.actor else ""
            held += f": {breaker.reason}" if breaker.reason else ""
            return Explanation(
                Code.BREAKER_OPEN,
                f"The circuit breaker {breaker.name} is {breaker.state.replace('_', ' ')}{held}.",
                until=breaker.tries_again_at,
                command=f"holdfast breaker close {_name(breaker.name)}",
                details={"breaker": breaker.name, "state": str(breaker.state)},
            )
    return None


def _limit_full(facts: Facts) -> Explanation | None:
    running = facts.surroundings.running_under_limit
    if not running:
        return None
    name = facts.queued.entrypoint
    shown = ", ".join(map(str, running[:5])) + (", …" if len(running) > 5 else "")
    verb = "runs" if len(running) == 1 else "run"
    return Explanation(
        Code.LIMIT_FULL,
        f"{name} has a limit of the whole fleet, and {len(running)} {verb} under it: {shown}.",
        command=f"holdfast show {running[0]}",
        details={"running": list(running)},
    )


def _runs_alone(facts: Facts) -> Explanation | None:
    job = facts.queued
    cap = max(LEAST_RECOVERIES_CAP, job.max_recoveries or _DEFAULT_MAX_RECOVERIES)
    if not job.recoveries or job.recoveries + 1 < cap:
        return None
    return Explanation(
        Code.RUNS_ALONE,
        f"{job.recoveries} workers died with it, and one more death would hold it. "
        f"It runs when a worker has nothing else.",
        command=f"holdfast move {job.id} --to {shell_word(job.entrypoint)}",
        details={"recoveries": job.recoveries, "max_recoveries": cap},
    )


def _slots_full(facts: Facts) -> Explanation | None:
    serving, name = facts.serving(), facts.queued.entrypoint
    own = [worker for worker in serving if name in worker.full_entrypoints]
    if any(w.running < w.concurrency and w not in own for w in serving):
        return None
    slots = sum(worker.concurrency for worker in serving)
    number = f"the {len(serving)} worker{'s' if len(serving) != 1 else ''}"
    verb = "serve" if len(serving) != 1 else "serves"
    return Explanation(
        Code.SLOTS_FULL,
        f"No thread or process for {name} is free in {number} that {verb} it."
        if own
        else f"All {slots} slots of {number} that {verb} {name} are in use.",
        command="holdfast run --processes N" if own else "holdfast run --concurrency N",
        details={"workers": [worker.id for worker in serving], "own": bool(own)},
    )


def _behind(facts: Facts) -> Explanation | None:
    count = facts.surroundings.before
    if not count:
        return None
    words = f"at least {MOST_COUNTED:,}" if count >= MOST_COUNTED else f"{count:,}"
    return Explanation(
        Code.BEHIND,
        f"It is due, and behind {words} of higher priority or earlier.",
        command=f"holdfast explain --entrypoint {shell_word(facts.queued.entrypoint)}",
        details={"before": count},
    )


def _due(facts: Facts) -> Explanation:
    return Explanation(
        Code.DUE, "It is due and the next of its entrypoint: a worker claims it when it looks."
    )


_QUEUED: tuple[Reason, ...] = (
    _not_due,
    _paused,
    _no_worker,
    _locked,
    _breaker_open,
    _runs_alone,
    _slots_full,
    _limit_full,
    _behind,
    _due,
)
"""Reasons that no waiting changes come first."""


def nearest(name: str, known: Iterable[str]) -> Iterator[str]:
    """Yield the names that are most like this one, in whatever case."""
    folded: dict[str, str] = {each.casefold(): each for each in known}
    for each in difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.6):
        yield folded[each]


def _since(facts: Facts, at: datetime) -> str:
    return _words(max(facts.now - at, timedelta(0)))


def _words(span: timedelta) -> str:
    seconds = span.total_seconds()
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.2g} s"
