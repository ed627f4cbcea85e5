"""The invariant of progress: an idle worker does not leave due jobs waiting."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
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
    """A stretch in which a job was due and nobody had it."""

    job: int
    entrypoint: str
    since: int
    until: int


@dataclass(slots=True)
class Busy:
    """What one worker held, and which entrypoints it serves."""

    spans: list[tuple[int, int]] = field(default_factory=list)
    entrypoints: set[str] = field(default_factory=set)


def progress(history: History) -> Iterator[Violation]:
    """While a worker holds nothing, a job that it can run starts within the lease and 5 seconds."""
    most = history.lease + _SLACK
    waits = [wait for wait in _waits(history) if wait.until - wait.since > most]
    for pid, busy in _workers(history).items():
        for began, ended in _idle(history, pid, busy):
            for wait in waits:
                since, until = max(began, wait.since), min(ended, wait.until)
                if wait.entrypoint not in busy.entrypoints or until - since <= most:
                    continue
                if not history.disturbed(pid, since, until):
                    late = (until - since) / SECOND
                    text = f"job {wait.job} waited {late:.1f} s while worker {pid} held nothing"
                    yield Violation("", text, wait.job, since)


def _workers(history: History) -> dict[int, Busy]:
    workers: defaultdict[int, Busy] = defaultdict(Busy)
    for key, entrypoint, end in history.leases():
        if (pid := pid_of(key.by)) is not None:
            workers[pid].spans.append((key.at, end))
            workers[pid].entrypoints.add(entrypoint)
    return workers


def _idle(history: History, pid: int, busy: Busy) -> Iterator[tuple[int, int]]:
    """The stretches between its leases, and after the last until it was told to end or died."""
    ends = [history.told.get(pid), history.died(pid), history.clock]
    last = min(end for end in ends if end is not None)
    free_since: int | None = None
    for start, end in [*sorted(busy.spans), (last, last)]:
        if free_since is not None and start > free_since:
            yield free_since, min(start, last)
        free_since = end if free_since is None else max(free_since, end)


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
