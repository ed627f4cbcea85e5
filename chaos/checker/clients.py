"""Invariants of the replies to clients: keys, repeated calls, ticks, cancellations."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from chaos.checker.model import Story, Violation
from chaos.files import PATIENCE, SECOND
from holdfast.lifecycle import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chaos.checker.history import History

_FOREVER = 2**62


def dedupe(history: History) -> Iterator[Violation]:
    """Two jobs under one dedupe key are never active at the same time."""
    by_key: defaultdict[str, list[Story]] = defaultdict(list)
    for story in history.stories.values():
        if story.spec is not None and story.spec[3] is not None:
            by_key[story.spec[3]].append(story)
    for key, stories in by_key.items():
        for before, after in pairwise(sorted(stories, key=lambda story: story.job)):
            if _both_active(before, after):
                text = f"jobs {before.job} and {after.job} were active under key {key!r}"
                yield Violation("", text, after.job, after.acknowledged)
    rows = [story.row for story in history.stories.values() if story.row is not None]
    owners: dict[str, int] = {}
    for row in rows:
        if row.dedupe is not None and row.held is None:
            other = owners.setdefault(row.dedupe, row.job)
            if other != row.job:
                text = f"jobs {other} and {row.job} are active under key {row.dedupe!r}"
                yield Violation("", text, row.job)


def _both_active(before: Story, after: Story) -> bool:
    assert before.acknowledged is not None
    assert after.acknowledged is not None
    begun = max(before.acknowledged, after.acknowledged)
    return begun < min(_freed(before), _freed(after))


def _freed(story: Story) -> int:
    """When the job freed its key. A held job has none."""
    for row in story.log:
        if row.final or row.status == Status.FAILED:
            return row.t
    return _FOREVER


def idempotent(history: History) -> Iterator[Violation]:
    """An enqueue makes one job, even if its reply was lost.

    A dedupe key refuses a second job while the first one is active. A job under the same key after
    the end of the first is not a duplicate.
    """
    by_uid: defaultdict[int, list[Story]] = defaultdict(list)
    for story in history.stories.values():
        if story.uid is not None:
            by_uid[story.uid].append(story)
    keyed = {job[0] for call in history.calls for job in call.jobs if job[3] is not None}
    for uid, stories in by_uid.items():
        for before, after in pairwise(sorted(stories, key=lambda story: story.job)):
            if uid not in keyed or _overlap(before, after):
                text = f"jobs {before.job} and {after.job} were both made by enqueue {uid}"
                yield Violation("", text, after.job)


def _overlap(before: Story, after: Story) -> bool:
    born = after.runs[0].born if after.runs else after.row.born if after.row else None
    return born is None or born < _freed(before)


def slots(history: History) -> Iterator[Violation]:
    """Each tick of a schedule makes one job, and no tick in between is missing."""
    jobs: defaultdict[str, set[int]] = defaultdict(set)
    for story in history.stories.values():
        found = [run.slot for run in story.runs] + ([story.row.slot] if story.row else [])
        for slot in found:
            if slot is not None:
                jobs[slot].add(story.job)
    for slot, made in jobs.items():
        if len(made) > 1:
            yield Violation("", f"tick {slot} became {len(made)} jobs", max(made))
    ticks = sorted(datetime.fromisoformat(slot) for slot in jobs)
    step = timedelta(seconds=history.plan.get("tick", 1))
    for before, after in pairwise(ticks):
        if after - before > step:
            missing = (after - before) // step - 1
            yield Violation("", f"{missing} ticks after {before.isoformat()} became no job")


def cancellation(history: History) -> Iterator[Violation]:
    """A job whose cancellation was acknowledged is canceled and never claimed again."""
    for call in history.calls:
        if call.op != "cancel" or call.outcome != "ok":
            continue
        for job in call.ids:
            if job is not None and call.ended is not None:
                yield from _canceled(history.stories.get(job) or Story(job), call.ended)


def _canceled(story: Story, acknowledged: int) -> Iterator[Violation]:
    ends = [row for row in story.log if row.status == Status.CANCELED]
    if not ends or ends[0].t > acknowledged:
        text = f"job {story.job} was not canceled when that was acknowledged"
        yield Violation("", text, story.job)
    for run in story.runs:
        if run.key.at > acknowledged:
            text = f"job {story.job} was claimed after its acknowledged cancellation"
            yield Violation("", text, story.job, run.start)


def refused(history: History) -> Iterator[Violation]:
    """An enqueue that was refused for good made no job."""
    gone = {job[0] for call in history.calls if call.final for job in call.jobs}
    for story in history.stories.values():
        if story.uid in gone:
            yield Violation("", f"job {story.job} was refused and exists", story.job)


def answered(history: History) -> Iterator[Violation]:
    """Every call of a client ends in time, whatever the network does."""
    most = int(history.plan.get("call_seconds", 20.0) * PATIENCE * SECOND)
    last = history.plan.get("ended", 0)
    for call in history.calls:
        if call.op == "row":
            continue
        taken = (call.ended or max(last, call.invoked)) - call.invoked
        if taken > most:
            yield Violation("", f"{call.op} {call.id} took {taken / SECOND:.1f} s", t=call.invoked)
