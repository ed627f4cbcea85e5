"""Cron expressions as pure values: which instants they name in a time zone.

Five fields (minute, hour, day of month, month, day of week), six with seconds last, or a nickname
such as `@daily`. When both day fields are restricted, either may match; when one of them starts
with `*`, both must.

The rule for the two nights on which a zone's clock is moved:

* A pattern whose hour is `*` or `*/n` follows elapsed time: it fires whenever the clock shows a
  matching time. It fires in both passes of a repeated hour, and a skipped time is passed over.
* Any other pattern names times of day, and each fires exactly once: a time that the clock skips
  fires at the first instant after the gap, a time that the clock shows twice fires at the first.
  Several times that fall on one instant are one slot.

Slots strictly increase in UTC.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import merge
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from holdfast.errors import InvalidInput, ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterator

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
# Weekdays and leap days repeat, so an expression that fires at all fires in these fifty years,
# which is as far as the library searches.
_SEARCHED_FROM = datetime(2000, 1, 1)
_FIRST_WINDOW = timedelta(minutes=1)
_ELAPSED_HOUR = re.compile(r"\*(/\d+)?")


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    allowed: str
    size: int


_FIELDS = (
    _Field("minute", "0-59", 60),
    _Field("hour", "0-23", 24),
    _Field("day of month", "1-31, L or LW", 31),
    _Field("month", "1-12 or JAN-DEC", 12),
    _Field("day of week", "0-7 (0 and 7 are Sunday) or SUN-SAT", 7),
    _Field("second", "0-59", 60),
)


class TickTimes(NamedTuple):
    """The slots of a stretch of time, and whether the limit left some out."""

    times: list[datetime]
    more: bool


@dataclass(frozen=True, slots=True)
class Cron:
    """A checked expression in a known time zone; every instance fires some day."""

    expression: str
    timezone: str

    @classmethod
    def parse(cls, expression: str, timezone: str = "UTC") -> Cron:
        return cls(" ".join(expression.split()), timezone)

    def __post_init__(self) -> None:
        _zone(self.timezone)
        fields = _fields(self.expression)
        for field, value in zip(_FIELDS, fields, strict=False):
            _check_field(self.expression, field, value)
        _check_fires(self.expression, fields)

    def after(self, instant: datetime) -> datetime:
        """The first slot strictly after `instant`, in UTC."""
        slot = next(self._slots(instant), None)
        if slot is None:
            raise ScheduleError(
                f"cron expression {self.expression!r} has no slot after {instant.isoformat()} "
                f"before the calendar ends; ask from an earlier instant"
            )
        return slot

    def between(self, start: datetime, end: datetime, limit: int) -> TickTimes:
        """The first `limit` slots after `start` and up to `end`, which is included."""
        _require_aware(end)
        if limit < 1:
            raise InvalidInput(f"limit of slots must be at least 1, got {limit}")
        times: list[datetime] = []
        for slot in self._slots(start):
            if slot > end:
                break
            if len(times) == limit:
                return TickTimes(times, more=True)
            times.append(slot)
        return TickTimes(times, more=False)

    def latest(self, start: datetime, end: datetime, limit: int) -> TickTimes:
        """The last `limit` slots after `start` and up to `end`, without a walk over all of them."""
        window = _FIRST_WINDOW
        while True:
            since = max(start, end - window)
            found = deque(takewhile(lambda slot: slot <= end, self._slots(since)), limit + 1)
            if len(found) > limit:
                found.popleft()
                return TickTimes(list(found), more=True)
            if since == start:
                return TickTimes(list(found), more=False)
            window *= 4

    def _slots(self, instant: datetime) -> Iterator[datetime]:
        _require_aware(instant)
        zone = _zone(self.timezone)
        fields = _fields(self.expression)
        latest = instant.astimezone(UTC)
        try:
            first, last = (_walk(fields, _start(latest, zone, fold)) for fold in (0, 1))
            if _ELAPSED_HOUR.fullmatch(fields[1]):
                found = merge(_shown(first, zone, 0), _shown(last, zone, 1))
            else:
                found = (_reached(local, zone) for local in first)
            for slot in found:
                if slot > latest:
                    yield slot
                    latest = slot
        except OverflowError:
            return


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ScheduleError(
            f"time zone {name!r} is unknown; use a name of the IANA database "
            f"such as 'Europe/Madrid'"
        ) from None


def _fields(expression: str) -> list[str]:
    written = expression
    if expression.startswith("@"):
        written = _NICKNAMES.get(expression.lower(), "")
        if not written:
            raise ScheduleError(
                f"cron nickname {expression!r} is unknown; use one of {', '.join(_NICKNAMES)}"
            )
    fields = written.split()
    if len(fields) not in (5, 6):
        raise ScheduleError(
            f"cron expression {expression!r} has {len(fields)} fields; write 5 (minute hour "
            f"day-of-month month day-of-week) or 6 with the seconds last"
        )
    return fields


def _check_field(expression: str, field: _Field, value: str) -> None:
    alone = ["*"] * len(_FIELDS)
    alone[_FIELDS.index(field)] = value
    try:
        _walk(alone, _SEARCHED_FROM)
    except (CronSimError, ValueError):
        raise ScheduleError(
            f"cron expression {expression!r}: {field.name} {value!r} is not valid; use "
            f"{field.allowed}, ranges from low to high, lists, or * and */n"
        ) from None
    steps = [int(term.split("/")[1]) for term in value.split(",") if "/" in term]
    if max(steps, default=1) > field.size:
        # Such a step would silently mean "the first value only".
        raise ScheduleError(
            f"cron expression {expression!r}: {field.name} {value!r} steps further than the "
            f"field is long; use a step of 1-{field.size}"
        )


def _check_fires(expression: str, fields: list[str]) -> None:
    try:
        first = next(_walk(fields, _SEARCHED_FROM), None)
    except CronSimError:
        first = None
    if first is None:
        raise ScheduleError(
            f"cron expression {expression!r} never fires: no date matches day of month "
            f"{fields[2]!r}, month {fields[3]!r} and day of week {fields[4]!r}; change one of them"
        )


def _require_aware(instant: datetime) -> None:
    if instant.utcoffset() is None:
        raise InvalidInput(f"instant {instant.isoformat()} has no time zone; pass an aware one")


def _walk(fields: list[str], start: datetime) -> Iterator[datetime]:
    """The matching times of a clock that is never moved, after `start`.

    The library's own handling of moved clocks is left out: it knows shifts of whole hours only,
    can answer with an earlier instant inside a repeated hour, and treats six fields differently.
    """
    minute_to_weekday, seconds = fields[:5], fields[5:] or ["0"]
    return CronSim(" ".join(seconds + minute_to_weekday), start)


def _start(instant: datetime, zone: ZoneInfo, fold: int) -> datetime:
    """The local time up to which every first (fold 0) or last (fold 1) showing is past."""
    local = instant.astimezone(zone)
    clock = local.replace(tzinfo=None, microsecond=0)
    first, last = _instant(clock, zone, 0), _instant(clock, zone, 1)
    if first == last or local.fold == fold:
        return clock
    moved = _moved(first, last, zone)
    second = timedelta(seconds=1)
    return _clock(moved - second, zone) if fold == 0 else _clock(moved, zone) - second


def _shown(times: Iterator[datetime], zone: ZoneInfo, fold: int) -> Iterator[datetime]:
    """When the zone's clock shows each time: for the first time (fold 0) or the last (fold 1)."""
    for local in times:
        instant = _instant(local, zone, fold)
        if _clock(instant, zone) == local:
            yield instant


def _reached(local: datetime, zone: ZoneInfo) -> datetime:
    """When the zone's clock first shows `local` or, if that is skipped, any later time."""
    instant = _instant(local, zone, 0)
    if _clock(instant, zone) == local:
        return instant
    return _moved(_instant(local, zone, 1), instant, zone)


def _moved(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """The instant in (before, after] at which the zone's clock was moved."""

    def offset(seconds: int) -> timedelta | None:
        return (before + timedelta(seconds=seconds)).astimezone(zone).utcoffset()

    seconds = range(int((after - before).total_seconds()))
    return before + timedelta(
        seconds=bisect_left(seconds, True, key=lambda s: offset(s) != offset(0))
    )


def _instant(local: datetime, zone: ZoneInfo, fold: int) -> datetime:
    return local.replace(tzinfo=zone, fold=fold).astimezone(UTC)


def _clock(instant: datetime, zone: ZoneInfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None)
