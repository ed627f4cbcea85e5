"""Invariants of each job's record: not lost, not ended twice, counted correctly."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from chaos.checker.model import LogRow, Story, Violation
from chaos.files import SECOND
from holdfast.lifecycle import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chaos.checker.history import History

_RESULT = {
    "Succeeded": (Status.SUCCESSFUL,),
    "Failed": (Status.EXCEPTION,),
    "Held": (Status.FAILED,),
    "Retried": (Status.QUEUED, Status.FAILED),
    "Released": (Status.QUEUED,),
}


def conservation(history: History) -> Iterator[Violation]:
    """Every acknowledged job is in the queue or has ended, never both."""
    for story in history.stories.values():
        known = story.acknowledged is not None or story.runs
        here, ended = story.row is not None, story.ended is not None
        if known and not here and not ended:
            why = "acknowledged" if story.acknowledged is not None else "run"
            yield Violation("", f"job {story.job} was {why} and is nowhere", story.job)
        if here and ended:
            yield Violation("", f"job {story.job} has ended and is still queued", story.job)
    for row_id, t in history.table_acknowledged.items():
        if row_id not in history.table_rows:
            yield Violation("", f"row {row_id} was acknowledged and is gone", t=t)


def one_end(history: History) -> Iterator[Violation]:
    """A job has at most one final log row, and no log row after it."""
    for story in history.stories.values():
        ends = [n for n, row in enumerate(story.log) if row.final]
        if len(ends) > 1:
            words = ", ".join(story.log[n].status for n in ends)
            yield Violation("", f"job {story.job} ended {len(ends)} times: {words}", story.job)
        elif ends and ends[0] != len(story.log) - 1:
            after = story.log[ends[0] + 1].verb
            yield Violation("", f"job {story.job}: {after} after its end", story.job)


def replay(history: History) -> Iterator[Violation]:
    """A row's state follows from its last log row, and only a picked row has a token."""
    for story in history.stories.values():
        last = story.log[-1].status if story.log else Status.QUEUED
        if story.row is None or (story.log and story.log[-1].final):
            continue
        claimed = last == Status.QUEUED and story.row.status == Status.PICKED
        if story.row.status != last and not claimed:
            text = f"job {story.job} is {story.row.status}, but its log ends with {last}"
            yield Violation("", text, story.job)
        if story.row.has_token != (story.row.status == Status.PICKED):
            yield Violation("", f"job {story.job}: token and status disagree", story.job)


def tokens(history: History) -> Iterator[Violation]:
    """A token belongs to one claim only."""
    claims: dict[str, tuple[str, int]] = {}
    for story in history.stories.values():
        for run in story.runs:
            claim = run.key.by, run.key.at
            if claims.setdefault(run.token, claim) != claim:
                text = f"job {story.job}: token {run.token} was used for two claims"
                yield Violation("", text, story.job, run.start)


def counters(history: History) -> Iterator[Violation]:
    """`attempts` counts retries, `recoveries` counts recoveries, and nothing else raises them."""
    for story in history.stories.values():
        expected = 0, 0
        for row in story.log:
            if (row.attempt, row.recoveries) != expected and row.verb != "edit":
                yield _miscounted(story, row, expected)
            expected = _after(row)
        open_row = story.row if story.log and not story.log[-1].final else None
        if open_row is not None and not _fits(story, expected):
            text = f"job {story.job} counts {open_row.attempts}/{open_row.recoveries}"
            yield Violation("", f"{text}, its log {expected[0]}/{expected[1]}", story.job)


def _after(row: LogRow) -> tuple[int, int]:
    """The counters that the next row should show."""
    match row.verb:
        case "retry":
            return row.attempt + 1, row.recoveries
        case "recover" | "retire":
            return row.attempt, row.recoveries + 1
        case "requeue":
            return 0, 0
        case _:
            return row.attempt, row.recoveries


def _fits(story: Story, expected: tuple[int, int]) -> bool:
    assert story.row is not None
    found = story.row.attempts, story.row.recoveries
    # The last retry that a cap allows is counted, and logged like a hold.
    spent = story.log[-1].verb == "hold" and found == (expected[0] + 1, expected[1])
    return found == expected or spent


def _miscounted(story: Story, row: LogRow, expected: tuple[int, int]) -> Violation:
    text = (
        f"job {story.job}: {row.verb} at {row.attempt}/{row.recoveries} (attempts/recoveries), "
        f"expected {expected[0]}/{expected[1]}"
    )
    return Violation("", text, story.job, row.t)


def immutable(history: History) -> Iterator[Violation]:
    """A job keeps its payload, entrypoint, dedupe key and creation time."""
    for story in history.stories.values():
        for before, after in pairwise(story.runs):
            if (before.uid, before.entrypoint, before.dedupe, before.born) != (
                after.uid,
                after.entrypoint,
                after.dedupe,
                after.born,
            ):
                yield Violation("", f"job {story.job} has changed", story.job, after.start)


def not_early(history: History) -> Iterator[Violation]:
    """No job is claimed before its row, the client's delay and the retry's delay allow it."""
    delays = history.plan.get("delays", {})
    for story in history.stories.values():
        first = _client_due(history, story)
        for run in story.runs:
            due = max(run.due, first)
            if run.key.at < due:
                early = (due - run.key.at) / SECOND
                text = f"job {story.job} was claimed {early:.3f} s before it was due"
                yield Violation("", text, story.job, run.start)
        delay = delays.get(str(story.uid))
        for row, after in pairwise(story.log):
            if delay and row.verb == "retry" and after.at is not None:
                early = delay * SECOND - (after.at - row.t)
                if early > 0:
                    text = f"job {story.job} was tried again {early / SECOND:.3f} s too early"
                    yield Violation("", text, story.job, after.at)


def _client_due(history: History, story: Story) -> int:
    if story.spec is None or story.invoked is None or not story.spec[4]:
        return 0
    skewed = bool(history.plan.get("skewed"))
    # Clients and server share one clock here, unless the run is about that.
    return 0 if skewed else story.invoked + int(story.spec[4])


def durable(history: History) -> Iterator[Violation]:
    """An outcome that was acknowledged to a worker is in the log, under the same lease."""
    ends = {row.key: row for story in history.stories.values() for row in story.log}
    for key, (t, how) in history.settled.items():
        if key.queue or how == "Abandoned":
            continue
        row = ends.get(key)
        if row is None or row.status not in _RESULT[how]:
            found = "another" if row is None else f"{row.verb} for this"
            text = f"job {key.job}: {how} was acknowledged, the log has {found} lease"
            yield Violation("", text, key.job, t)


def explained_errors(history: History) -> Iterator[Violation]:
    """A failed job has its error in the log."""
    for story in history.stories.values():
        for row in story.log:
            failed = row.status == Status.EXCEPTION or row.verb == "hold"
            mute = row.status == Status.FAILED and row.verb == "retire" and row.reason is None
            if (failed and row.error is None) or mute:
                yield Violation("", f"job {story.job} failed without an error", story.job, row.t)
            elif row.reason == "outcome could not be stored":
                yield Violation("", f"job {story.job}: its error was not stored", story.job, row.t)
