"""The invariant of progress: no due job waits for a worker with a free slot."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from chaos.checker.model import Violation, pid_of
from chaos.files import PATIENCE, SECOND
from holdfast.lifecycle import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chaos.checker.history import History
    from chaos.checker.model import Story

_SLACK = int(5 * PATIENCE * SECOND)
_GUARDED = "guarded"
"""The entrypoint behind a circuit breaker, which may keep its jobs waiting."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A stretch in which a job was due and had no lease."""

    job: int
    entrypoint: str
    since: int
    until: int


@dataclass(slots=True)
class Held:
    """What one worker held, and which entrypoints it serves."""

    spans: list[tuple[int, int, bool]] = field(default_factory=list)
    """Start and end of each lease, and whether the job had outlived a worker."""
    entrypoints: set[str] = field(default_factory=set)


def progress(history: History) -> Iterator[Violation]:
    """No due job waits longer than the lease and 5 seconds for a worker with a free slot."""
    most = history.lease + _SLACK
    waits = [wait for wait in _waits(history) if wait.until - wait.since > most]
    for pid, held in _workers(history).items():
        for began, ended in _pauses(history, pid, held):
            for wait in waits:
                since, until = max(began, wait.since), min(ended, wait.until)
                if wait.entrypoint not in held.entrypoints or until - since <= most:
                    continue
                if (quiet := history.quiet(pid, since, until)) > most:
                    text = f"job {wait.job} waited {quiet / SECOND:.1f} s for worker {pid}"
                    yield Violation("", f"{text}, which had a free slot", wait.job, since)


def _workers(history: History) -> dict[int, Held]:
    runs = (run for story in history.stories.values() for run in story.runs)
    recovered = {run.key for run in runs if run.recoveries}
    workers: defaultdict[int, Held] = defaultdict(Held)
    for key, entrypoint, end in history.leases():
        if (pid := pid_of(key.by)) is not None:
            workers[pid].spans.append((key.at, end, key in recovered))
            workers[pid].entrypoints.add(entrypoint)
    return workers


def _pauses(history: History, pid: int, held: Held) -> Iterator[tuple[int, int]]:
    """The stretches between its claims in which it had a free slot, while it was to work.

    Not those with a recovered job: a suspect runs alone. Where its slots are not known it has one.
    """
    slots = history.plan.get("concurrency", 1)
    last = min(
        end for end in (history.told.get(pid), history.died(pid), history.clock) if end is not None
    )
    ends: list[int] = []
    alone_until = 0
    spans = sorted(held.spans)
    for (start, end, recovered), (following, *_) in pairwise([*spans, (last, last, False)]):
        heapq.heappush(ends, end)
        while ends[0] <= start and len(ends) > 1:
            heapq.heappop(ends)
        if recovered:
            alone_until = max(alone_until, end)
        free = sorted(ends)[-slots] if len(ends) >= slots else start
        since = max(free, alone_until)
        if since < min(following, last):
            yield since, min(following, last)


def _waits(history: History) -> Iterator[Wait]:
    limited = {*history.plan.get("limits", {}), _GUARDED}
    for story in history.stories.values():
        for wait in _waits_of(story, history.clock):
            if wait.entrypoint not in limited:
                yield wait


def _waits_of(story: Story, clock: int) -> Iterator[Wait]:
    """Of a job that no worker died with: suspects may have to wait for each other."""
    ends = sorted(row.t for row in story.log)
    for run in story.runs:
        if not run.recoveries:
            before = [end for end in ends if end <= run.key.at]
            since = max(run.due, run.born, *before[-1:])
            yield Wait(story.job, run.entrypoint, since, run.key.at)
    row = story.row
    if row is not None and row.status == Status.QUEUED and not row.recoveries:
        yield Wait(story.job, row.entrypoint, max(row.due, row.born, *ends[-1:]), clock)
