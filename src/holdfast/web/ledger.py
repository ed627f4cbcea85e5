"""A job's life as intervals on one line of time: each lease with its wait, its end and its hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from html import escape

from markupsafe import Markup

from holdfast.lifecycle import Status
from holdfast.models import Job, LogEntry
from holdfast.web.words import NOTHING, coarse, error_line, outcome, span

MOST_ROWS = 60
"""A longer life is folded in its middle."""

_MIDDLE = 18
_STEPS = (0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 21600, 86400, 604_800)
_FOLD = 0.12
"""The part of the width that an idle stretch gets, however long it was."""
_LABEL = 6
"""Half the width of a label of the axis, in per cent: nearer to a fold it would touch its text."""
_LETTER = 1.7
"""The width of a letter of the axis, in per cent."""
_LEAST_FOLD = timedelta(seconds=20)
_SOON = timedelta(seconds=1)
"""A job that is due sooner has no tick of its own."""


@dataclass(frozen=True, slots=True)
class Row:
    """A lease, or what a person did: a line of the table beside its interval."""

    at: datetime
    """Claimed, or done by a person."""
    end: datetime
    shape: str
    verb: str
    why: str
    who: str
    since: datetime | None = None
    """When the job began to wait for this lease."""
    due: datetime | None = None
    claimed: bool = True
    silent: datetime | None = None
    """When the worker fell silent."""
    held_until: datetime | None = None
    traceback: str | None = None
    same: bool = False
    """Its traceback is that of an earlier line."""
    runs: bool = False
    attempt: int = 0
    svg: Markup | None = None

    @property
    def lasted(self) -> timedelta | None:
        return self.end - self.at if self.claimed else None


def rows(history: Sequence[LogEntry], job: Job | None, now: datetime) -> list[Row]:
    """The log of a job, and the lease that runs now."""
    found: list[Row] = []
    seen: dict[str, int] = {}
    begun = _enqueued(history, job)
    for entry in history:
        shape, verb = outcome(entry)
        text = (entry.traceback or {}).get("traceback")
        claimed = entry.claimed_at is not None
        found.append(
            Row(
                at=entry.claimed_at or entry.created,
                end=entry.created,
                shape=shape,
                verb=verb,
                why=error_line(entry),
                who=entry.claimed_by or entry.actor or NOTHING,
                since=begun if claimed else None,
                due=entry.due_at if claimed else None,
                claimed=claimed,
                silent=_silent(entry),
                traceback=str(text) if text and text not in seen else None,
                same=bool(text) and text in seen,
                attempt=entry.attempt,
            )
        )
        if text:
            seen[str(text)] = len(found)
        begun = entry.created
    found = [_held(row, found[n + 1 :], job, now) for n, row in enumerate(found)]
    if job is not None and job.claimed_at is not None:
        who = job.claimed_by or NOTHING
        found.append(
            Row(
                job.claimed_at, now, "picked", "running", "", who,
                since=begun, due=job.execute_after, runs=True, attempt=job.attempts,
            )
        )  # fmt: skip
    return found


def _enqueued(history: Sequence[LogEntry], job: Job | None) -> datetime | None:
    if job is not None:
        return job.created
    return next((entry.enqueued_at for entry in history if entry.enqueued_at), None)


def _silent(entry: LogEntry) -> datetime | None:
    """A recovered lease ended its length after the last heartbeat."""
    if outcome(entry)[0] != "recover" or entry.lease is None or entry.claimed_at is None:
        return None
    return max(entry.claimed_at, entry.created - entry.lease)


def _held(row: Row, after: Sequence[Row], job: Job | None, now: datetime) -> Row:
    if row.shape != "held":
        return row
    release = next((later.end for later in after if later.shape != "edit"), None)
    stays = job is not None and job.status is Status.FAILED
    return replace(row, held_until=release or (now if stays else None))


def drawn(found: Sequence[Row], now: datetime) -> tuple[list[Row], Markup]:
    """The rows with their pictures, and the axis above them."""
    if not found:
        return [], Markup("")
    first = min(row.since or row.at for row in found)
    last = max(max(row.end, row.held_until or row.end) for row in found)
    last = max(last, first + timedelta(milliseconds=1))
    busy = [(row.at, row.end) for row in found]
    scale = Scale(busy, first, last)
    steps = _steps(scale)
    return [replace(row, svg=_lease(scale, steps, row)) for row in found], _axis(scale, steps)


class Scale:
    """Time to per cent. Idle stretches are folded: each has the same room, and its length."""

    def __init__(
        self, busy: Sequence[tuple[datetime, datetime]], start: datetime, end: datetime
    ) -> None:
        live = sum((b - a for a, b in busy), timedelta(0))
        fold = max(_LEAST_FOLD, live * 0.6)
        merged: list[tuple[datetime, datetime]] = [(start, start)]
        for a, b in sorted([*busy, (end, end)]):
            if a - merged[-1][1] > fold:
                merged.append((a, b))
            else:
                merged[-1] = (merged[-1][0], max(merged[-1][1], b))
        gaps = len(merged) - 1
        room = min(_FOLD, 0.6 / gaps) if gaps else 0.0
        # A moment is drawn with some width, or two folds would touch.
        lengths = [max((b - a) / timedelta(seconds=1), 0.05) for a, b in merged]
        unit = (1 - gaps * room) / sum(lengths)
        self.pieces: list[tuple[datetime, datetime, float, float]] = []
        self.folds: list[tuple[datetime, datetime, float, float]] = []
        x = 0.0
        for (a, b), length in zip(merged, lengths, strict=True):
            if self.pieces:
                self.folds.append((self.pieces[-1][1], a, x, x + room))
                x += room
            self.pieces.append((a, b, x, x + length * unit))
            x += length * unit

    def __call__(self, moment: datetime) -> float:
        for a, b, left, right in (*self.pieces, *self.folds):
            if a <= moment <= b:
                part = (moment - a) / (b - a) if b > a else 0.5
                return 100 * (left + (right - left) * part)
        return 0.0 if moment < self.pieces[0][0] else 100.0


def _steps(scale: Scale) -> list[tuple[datetime, str]]:
    """Some round moments of the longest stretch, as labels of the axis."""
    start, end, left, right = max(scale.pieces, key=lambda piece: piece[3] - piece[2])
    length, room = (end - start).total_seconds(), max(1, int(6 * (right - left)))
    last = len(_STEPS) - 1
    n = next((n for n, step in enumerate(_STEPS) if length / step <= room), last)
    # A coarse step may miss the stretch, or meet it where there is no room for a label.
    for step in reversed(_STEPS[max(0, n - 2) : n + 1]):
        moments = _moments(start, end, step)
        if found := [each for each in moments if _clear(scale, each[0])]:
            return _apart(scale, found)
    return []


def _apart(scale: Scale, labels: Sequence[tuple[datetime, str]]) -> list[tuple[datetime, str]]:
    """The labels whose texts do not touch the one before."""
    found: list[tuple[datetime, str]] = []
    reached = 0.0
    for moment, text in labels:
        share, width = scale(moment), _LETTER * len(text)
        left = share - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[_anchor(share)]
        if left >= reached or not found:
            found.append((moment, text))
            reached = left + width
    return found


def _anchor(share: float) -> str:
    """Near an edge a label stands on the inner side of its moment."""
    return "start" if share < 4 else "end" if share > 96 else "middle"


def _clear(scale: Scale, moment: datetime) -> bool:
    """Whether a label here leaves the text of every fold alone."""
    at = scale(moment)
    folds = ((100 * left, 100 * right) for *_, left, right in scale.folds)
    return all(at <= left - _LABEL or at >= right + _LABEL for left, right in folds)


def _moments(start: datetime, end: datetime, step: float) -> list[tuple[datetime, str]]:
    """Round instants between two, this many seconds apart."""
    n = int(start.timestamp() / step) + 1
    found: list[tuple[datetime, str]] = []
    while n * step < end.timestamp() and len(found) < 5:
        moment = datetime.fromtimestamp(n * step, UTC)
        fraction = f".{moment.microsecond // 100_000}" if step < 1 else ""
        text = f"{moment:%H:%M}" if step >= 60 else f"{moment:%H:%M:%S}{fraction}"
        found.append((moment, text))
        n += 1
    return found


def _frame(scale: Scale, steps: Sequence[tuple[datetime, str]]) -> str:
    return "".join(
        f'<rect class="brk" x="{100 * left:.2f}%" width="{100 * (right - left):.2f}%" y="0" '
        f'height="100%"/>'
        for _, _, left, right in scale.folds
    ) + "".join(
        f'<line class="grid" x1="{scale(moment):.2f}%" x2="{scale(moment):.2f}%" y1="0" y2="100%"/>'
        for moment, _ in steps
    )


def _axis(scale: Scale, steps: Sequence[tuple[datetime, str]]) -> Markup:
    out = [
        '<svg class="lease" role="img" aria-label="Time, left to right; idle stretches are folded">'
    ]
    for a, b, left, right in scale.folds:
        out.append(
            f'<rect class="brk" x="{100 * left:.2f}%" width="{100 * (right - left):.2f}%" y="0" '
            f'height="100%"/><text x="{50 * (left + right):.2f}%" y="20" text-anchor="middle">'
            f"{coarse(b - a)}</text>"
        )
    for moment, text in steps:
        share = scale(moment)
        out.append(f'<text x="{share:.2f}%" y="20" text-anchor="{_anchor(share)}">{text}</text>')
    return Markup("".join([*out, "</svg>"]))  # noqa: S704 - numbers and times


def _lease(scale: Scale, steps: Sequence[tuple[datetime, str]], row: Row) -> Markup:
    """Dots while it waited, a tick when due, a bar while it was leased, a shape at its end."""
    said = escape(_say(row))
    out = [
        f'<svg class="lease" role="img" aria-label="{said}"><title>{said}</title>',
        _frame(scale, steps),
        *_waited(scale, row),
    ]
    left, right = scale(row.at), scale(row.end)
    if row.claimed:
        width = max(right - left, 0.3)
        out.append(
            f'<rect class="run st-{row.shape}" x="{left:.2f}%" width="{width:.2f}%" '
            f'y="{_MIDDLE - 7}" height="14" rx="2"/>'
        )
        if row.silent:
            quiet = scale(row.silent)
            out.append(
                f'<rect fill="url(#silent)" x="{quiet:.2f}%" width="{max(right - quiet, 0):.2f}%" '
                f'y="{_MIDDLE - 7}" height="14"/>'
            )
    else:
        out.append(_vertical(left))
    if row.held_until:
        out.append(_horizontal("hold", right, scale(row.held_until)))
    if row.claimed and not row.runs:
        # Near the edge the shape stands on the left of the end.
        out.append(
            f'<svg x="{right:.2f}%" y="{_MIDDLE - 7}" overflow="visible" class="st-{row.shape}">'
            f'<use href="#i-{row.shape}" x="{4 if right < 95 else -18}" width="14" height="14"/>'
            f"</svg>"
        )
    return Markup("".join([*out, "</svg>"]))  # noqa: S704 - numbers, and texts that were escaped


def _waited(scale: Scale, row: Row) -> list[str]:
    if not row.claimed:
        return []
    out = []
    if row.since is not None and row.at - row.since > timedelta(milliseconds=50):
        out.append(_horizontal("wait", scale(row.since), scale(row.at)))
    if row.due is not None and row.since is not None and row.since + _SOON < row.due <= row.at:
        out.append(_vertical(scale(row.due)))
    return out


def _horizontal(kind: str, left: float, right: float) -> str:
    return (
        f'<line class="{kind}" x1="{left:.2f}%" x2="{right:.2f}%" y1="{_MIDDLE}" y2="{_MIDDLE}"/>'
    )


def _vertical(x: float) -> str:
    return f'<line class="due" x1="{x:.2f}%" x2="{x:.2f}%" y1="{_MIDDLE - 6}" y2="{_MIDDLE + 6}"/>'


def _say(row: Row) -> str:
    if not row.claimed:
        return f"{row.verb} by {row.who}: {row.why} at {_clock(row.end)}"
    if row.runs:
        return f"Leased to {row.who} since {_clock(row.at)}, {span(row.end - row.at)}"
    why = f": {row.why}" if row.why else ""
    return (
        f"Leased to {row.who} from {_clock(row.at)} to {_clock(row.end)}, "
        f"{span(row.end - row.at)}; {row.verb}{why}"
    )


def _clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%H:%M:%S}"


def folded(found: Sequence[Row]) -> tuple[Sequence[Row], int]:
    """The first and last rows of a long life, and how many between them are left out."""
    if len(found) <= MOST_ROWS:
        return found, 0
    half = MOST_ROWS // 2
    return [*found[:half], *found[-half:]], len(found) - 2 * half


def waited(found: Sequence[Row]) -> timedelta:
    """How long the job waited for its leases, all in all."""
    return sum((row.at - row.since for row in found if row.claimed and row.since), timedelta(0))


def waits(job: Job | None, now: datetime) -> timedelta:
    """How long a queued job has waited since it was due."""
    if job is None or job.claimed_at is not None or job.held_at is not None:
        return timedelta(0)
    return max(now - job.execute_after, timedelta(0))


def ran(found: Sequence[Row]) -> timedelta:
    return sum((row.end - row.at for row in found if row.claimed), timedelta(0))
