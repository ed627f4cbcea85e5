"""Invariants of leases: which worker may write, how many may run, and why a job runs again."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from chaos.checker.model import LeaseKey, LogRow, Run, Story, Violation, pid_of
from chaos.files import PATIENCE, SECOND, Line
from holdfast.lifecycle import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from chaos.checker.history import History

_FORGETFUL = 2 * SECOND
"""A claim that was not flushed yet is forgotten by a crash within this time."""

_LAST_BREATH = SECOND

_FREEING = ("Released", "Retried")
_LAPSES = ("recover", "excuse", "retire")
_BLOCKING = ("block", "gate-block")
_DEAFENING = ("freeze", "stall", "lag")
_ENDS = {
    Status.SUCCESSFUL: ("ok",),
    Status.EXCEPTION: ("raise", "cancelled"),
    Status.FAILED: ("raise", "retry", "cancelled"),
}


def fence(history: History) -> Iterator[Violation]:
    """Only the holder settles a lease, after the handler has ended, with the handler's outcome."""
    for story in history.stories.values():
        runs = {run.key: run for run in story.runs}
        for row in story.log:
            if row.settles and row.key is not None:
                yield from _settled_by_holder(history, story, row, runs.get(row.key))
    yield from _table_fence(history)


def _settled_by_holder(
    history: History, story: Story, row: LogRow, run: Run | None
) -> Iterator[Violation]:
    if run is None:
        if row.verb != "release" and not _unwritten(history, row):
            text = f"job {story.job}: {row.verb} of a lease under which nothing ran"
            yield Violation("", text, story.job, row.t)
        return
    if run.open_at(row.t) and not _dying(history, row, run):
        text = f"job {story.job}: {row.verb} by another while pid {run.pid} ran it"
        yield Violation("", text, story.job, row.t)
    elif row.verb == "retry":
        if run.how != "retry":
            yield Violation("", f"job {story.job}: retry after {run.how!r}", story.job, row.t)
    elif (ends := _ENDS.get(Status(row.status))) and run.how not in ends:
        text = f"job {story.job}: {row.status} after the handler ended with {run.how!r}"
        yield Violation("", text, story.job, row.t)


def _dying(history: History, row: LogRow, run: Run) -> bool:
    """A worker whose event loop is blocked releases its other jobs, and ends at once."""
    died = history.died(run.pid)
    own = row.verb == "release" and pid_of(row.by) == run.pid
    return own and died is not None and died - row.t < _LAST_BREATH


def _unwritten(history: History, row: LogRow) -> bool:
    """A handler that is refused before it starts, such as for a lost schedule, leaves no line."""
    return row.error is not None and row.error in history.plan.get("refusals", ())


def _table_fence(history: History) -> Iterator[Violation]:
    """Rows of a table have no log: no worker may settle a lease after the next has begun."""
    for row_id, runs in history.table_runs.items():
        starts = sorted(runs, key=lambda run: run.start)
        for before, after in pairwise(starts):
            told = history.settled.get(before.key)
            # A row that was put off is free before its worker has heard so.
            if told is not None and told[0] > after.start and told[1] not in _FREEING:
                text = f"row {row_id}: pid {before.pid} settled it while pid {after.pid} held it"
                yield Violation("", text, t=told[0])
        row = history.table_rows.get(row_id)
        if row is None or not row["inactive"] or _retired(history, row):
            continue
        if not any(run.how in ("ok", "raise", "retry") for run in starts):
            yield Violation("", f"row {row_id} is done, but no handler ended")


def _retired(history: History, row: Line) -> bool:
    """No handler ends a row whose leases lapsed too often."""
    most: int = history.plan.get("max_recoveries", 3)
    return row["outcome"] == Status.FAILED and int(row["rec"]) >= most


def one_lease(history: History) -> Iterator[Violation]:
    """The leases of a job never overlap, and every run belongs to one of them."""
    for story in history.stories.values():
        spans = [(row.at, row.t) for row in story.log if row.at is not None]
        if story.row is not None and story.row.at is not None:
            spans.append((story.row.at, history.clock))
        for (_, end), (start, _) in pairwise(spans):
            if start < end:
                text = (
                    f"job {story.job} was leased {(end - start) / SECOND:.3f} s before it was free"
                )
                yield Violation("", text, story.job, start)
        known = {row.key for row in story.log}
        if story.row is not None:
            known.add(story.row.key)
        for run in story.runs:
            forgotten = history.crashed(run.key.at, run.key.at + _FORGETFUL)
            if run.key not in known and not forgotten:
                text = f"job {story.job} ran in pid {run.pid} under a lease that has no end"
                yield Violation("", text, story.job, run.start)


def mortal(history: History) -> Iterator[Violation]:
    """A lease ends at most three leases and five seconds after its handler."""
    most = 3 * history.lease + int(5 * PATIENCE * SECOND)
    ends = _ends(history)
    for story in history.stories.values():
        for run in story.runs:
            if run.end is None:
                continue
            end = ends.get(run.key, history.clock if _holds(story, run.key) else run.end)
            if end - run.end > most and not history.disturbed(run.pid, run.end, end):
                late = (end - run.end) / SECOND
                text = f"job {story.job}: its lease lived {late:.1f} s longer than its handler"
                yield Violation("", text, story.job, end)


def _ends(history: History) -> dict[LeaseKey, int]:
    rows = (row for story in history.stories.values() for row in story.log)
    return {row.key: row.t for row in rows if row.key is not None}


def _holds(story: Story, key: LeaseKey) -> bool:
    return story.row is not None and story.row.key == key


def limits(history: History) -> Iterator[Violation]:
    """An entrypoint never has more leases than its limit, by the database's clock."""
    for name, most in history.plan.get("limits", {}).items():
        edges: list[tuple[int, int, int]] = []
        for key, entrypoint, end in history.leases():
            if entrypoint == name:
                edges += [(key.at, 1, key.job), (end, -1, key.job)]
        count = 0
        # At the same instant an end comes before a start.
        for t, step, job in sorted(edges):
            count += step
            if step > 0 and count > most:
                yield Violation("", f"{count} leases of {name!r} at once, limit {most}", job, t)


def capacity(history: History) -> Iterator[Violation]:
    """A worker never runs more handlers than it has slots."""
    most = history.plan.get("concurrency", 0)
    edges: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for run in _all_runs(history):
        if run.end is not None:
            edges[run.pid] += [(run.start, 1, run.key.job), (run.end, -1, run.key.job)]
    for pid, found in edges.items():
        count = 0
        for t, step, job in sorted(found):
            count += step
            if step > 0 and most and count > most:
                yield Violation("", f"pid {pid} runs {count} handlers, {most} slots", job, t)
                break


def _all_runs(history: History) -> Iterator[Run]:
    for story in history.stories.values():
        yield from story.runs
    for runs in history.table_runs.values():
        yield from runs


def self_fence(history: History) -> Iterator[Violation]:
    """No handler starts after its lease has ended, or runs beside the job's next handler.

    Unless its process was frozen or its loop blocked: then it could not have known.
    """
    for story in history.stories.values():
        # A worker computes by itself when its lease ends. Of a cancellation it must hear first.
        lapses = {row.key: row.t for row in story.log if row.verb in _LAPSES}
        for run in story.runs:
            end = lapses.get(run.key)
            if end is not None and run.start > end and not _frozen_in_between(history, run, end):
                text = f"job {story.job} was started {(run.start - end) / SECOND:.3f} s too late"
                yield Violation("", text, story.job, run.start)
    blocked = _blocked(history)
    for story in history.stories.values():
        yield from _overlaps(history, story.runs, blocked)
    for runs in history.table_runs.values():
        yield from _overlaps(history, runs, blocked)


def _frozen_in_between(history: History, run: Run, end: int) -> bool:
    """Whether the process stood still from its last look at the clock to the handler's first line.

    Between the two nothing else can happen in its event loop, so it has written nothing since the
    lease ended.
    """
    return run.before < end and any(
        stall.kind == "stall" and stall.pid == run.pid and stall.t <= end <= stall.until
        for stall in history.stalls
    )


def _blocked(history: History) -> dict[int, list[tuple[int, int]]]:
    """When the event loop of each process was blocked by a handler."""
    found: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for run in _all_runs(history):
        if run.kind in _BLOCKING:
            found[run.pid].append((run.start, run.end or history.died(run.pid) or history.clock))
    return found


def _overlaps(
    history: History, runs: Iterable[Run], blocked: Mapping[int, list[tuple[int, int]]]
) -> Iterator[Violation]:
    ordered = sorted(runs, key=lambda run: run.start)
    for before, after in pairwise(ordered):
        gone = before.end or history.died(before.pid) or history.clock
        both = gone - after.start
        if both <= 0 or history.crashed(before.key.at, after.start):
            continue
        deaf = [
            (fault.t, fault.until)
            for fault in (*history.faults, *history.stalls)
            if fault.pid == before.pid and fault.kind in _DEAFENING
        ]
        spans = [*deaf, *blocked.get(before.pid, ())]
        # It cannot have run on for longer than it was kept from hearing of the end.
        if both > _covered(spans, after.start - history.lease, gone):
            text = f"job {before.key.job} ran twice at once for {both / SECOND:.3f} s"
            yield Violation("", text, before.key.job, after.start)


def _covered(spans: Iterable[tuple[int, int]], since: int, until: int) -> int:
    """How much of the time between two instants lies in at least one span."""
    total, place = 0, since
    for start, end in sorted(spans):
        place = max(place, start)
        end = min(end, until)
        if end > place:
            total, place = total + end - place, end
    return total


def explained(history: History) -> Iterator[Violation]:
    """A lease starts its handler at most once, and every recovery has a cause."""
    for story in history.stories.values():
        for key, count in Counter(run.key for run in story.runs).items():
            if count > 1:
                text = f"job {story.job} was started {count} times under one lease"
                yield Violation("", text, story.job, key.at)
        for row in story.log:
            if row.verb in _LAPSES and not _recovery_explained(history, row):
                text = f"job {story.job} was recovered from pid {pid_of(row.by)} without a cause"
                yield Violation("", text, story.job, row.t)


def _recovery_explained(history: History, row: LogRow) -> bool:
    assert row.at is not None
    pid = pid_of(row.by)
    died = history.died(pid)
    if died is not None and died <= row.t:
        return True
    # The last renewal may have been just before; then a whole lease passed in silence.
    since = row.t - history.lease - history.lease // 2 - SECOND // 2
    return history.disturbed(pid, max(since, row.at - SECOND), row.t)
