"""Failures in groups of one entrypoint and one mark of the error, as the log has stored it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any

from holdfast.lifecycle import RETIRE_STALE, Status
from holdfast.models import JobId
from holdfast.monitor.fingerprint import pattern, split
from holdfast.monitor.reader import Look
from holdfast.stores.postgres import rows

MOST_FAILURES = 20_000
"""Of each outcome, the newest leases that ended with an error."""
MOST_GROUPS = 50
"""The groups that are shown."""
SINCE = timedelta(days=1)

_HOUR = timedelta(hours=1)
_FRAME = re.compile(r'^  File "([^"\n]*)", line (\d+), in (.+)$', re.MULTILINE)
_DIED = "its workers died while they ran it"


@dataclass(frozen=True, slots=True)
class Group:
    """Failures of one entrypoint with one kind of error."""

    entrypoint: str
    mark: str
    """Of the error. Where the log has none: the reason of the hold, or the text of the error."""
    count: int
    first: datetime
    last: datetime
    hours: Mapping[datetime, int] = field(repr=False)
    """How many by the hour in which each failed."""
    newest: tuple[int, int | None]
    """A job, and the log row that says why it failed."""
    kind: str = ""
    pattern: str = ""
    place: str = ""
    """The line that raised the error."""
    jobs: tuple[JobId, ...] = field(default=(), repr=False)
    """The held ones, newest enqueued first."""

    @property
    def key(self) -> str:
        text = f"{self.entrypoint}\0{self.mark}"
        return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()

    @property
    def word(self) -> str:
        """By which a search for errors finds these; a reason of a hold is in no error."""
        return "" if self.kind == self.mark else self.kind

    def by_hour(self, now: datetime, hours: int = 24) -> list[int]:
        end = _hour(now)
        return [self.hours.get(end - _HOUR * ago, 0) for ago in reversed(range(hours))]


async def held_groups(look: Look, *, recent: bool = False) -> list[Group]:
    """The held jobs; the largest groups first. `recent` ones may be some seconds old."""
    read = look.recent if recent else look.run
    found: dict[tuple[str, str], list[Any]] = {}
    for row in await read("page_held"):
        found.setdefault((row[1], _mark(row)), []).append(row)
    return _sorted(_held(*key, some) for key, some in found.items())


def _mark(row: Sequence[Any]) -> str:
    """What the error was stored under. Rows without an error in the log say it themselves."""
    *_, error, _, _, mark, reason = row
    if mark is not None:
        return str(mark)
    if reason == RETIRE_STALE.reason:
        return str(reason)
    kind, message = split(error)
    return f"{kind}\0{pattern(message)}"


def _held(entrypoint: str, mark: str, some: Sequence[Sequence[Any]]) -> Group:
    newest = max(some, key=lambda row: row[3])
    kind, message = split(newest[2])
    if mark == RETIRE_STALE.reason:
        kind, message = mark, _DIED
    return Group(
        entrypoint, mark, len(some),
        first=min(row[3] for row in some),
        last=newest[3],
        hours=Counter(_hour(row[3]) for row in some),
        newest=(newest[0], newest[4]),
        kind=kind,
        pattern=pattern(message),
        jobs=tuple(JobId(row[0]) for row in some),
    )  # fmt: skip


async def ended_groups(look: Look, statuses: Sequence[Status]) -> dict[Status, list[Group]]:
    """Leases of the last day that ended with an error, by the outcome; some seconds old at most."""
    found = await look.recent(
        "page_failures", statuses=list(statuses), since=SINCE, limit=MOST_FAILURES
    )
    groups: dict[tuple[Status, str, str], list[Any]] = {}
    for row in found:
        groups.setdefault((rows.status(row[0]), row[1], row[2]), []).append(row)
    return {
        status: _sorted(_ended(*key[1:], some) for key, some in groups.items() if key[0] is status)
        for status in statuses
    }


def _ended(entrypoint: str, mark: str, hours: Sequence[Sequence[Any]]) -> Group:
    newest = max(hours, key=lambda row: row[6])
    return Group(
        entrypoint, mark, sum(row[4] for row in hours),
        first=min(row[5] for row in hours),
        last=newest[6],
        hours={row[3]: row[4] for row in hours},
        newest=(newest[7], newest[8]),
    )  # fmt: skip


async def with_errors(look: Look, groups: Sequence[Group]) -> list[Group]:
    """The groups with the error of their newest failure, and the line that raised it."""
    known = [group.newest for group in groups if group.newest[1] is not None]
    if not known:
        return list(groups)
    found = await look.recent(
        "page_samples", job_ids=[job for job, _ in known], log_ids=[log for _, log in known]
    )
    samples = {row[0]: row[1:] for row in found if row[1] is not None}
    return [_with_error(group, samples.get(group.newest[0])) for group in groups]


def _with_error(group: Group, sample: Sequence[str | None] | None) -> Group:
    if sample is None:
        return group
    kind, message, traceback = sample
    frames = _FRAME.findall(traceback or "")
    place = ""
    if frames:
        path, line, function = frames[-1]
        file = "/".join(re.split(r"[/\\]", path)[-2:])
        place = f"{file}:{line} in {function}"
    return replace(group, kind=kind or group.kind, pattern=pattern(message or ""), place=place)


def _sorted(groups: Any) -> list[Group]:
    return sorted(groups, key=lambda group: (-group.count, group.entrypoint, group.mark))


def _hour(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
