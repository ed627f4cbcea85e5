"""Due schedules -> jobs. Every tick is taken by exactly one scheduler, in one statement."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple

from holdfast.errors import ScheduleError
from holdfast.scheduler.cron import Cron, TickTimes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.models import JobId, Schedule
    from holdfast.ports import Store

logger = logging.getLogger("holdfast.scheduler")

Misfire = Literal["skip", "once", "all"]
Overlap = Literal["skip", "allow"]

GRACE = timedelta(seconds=10)
"""A tick that is found later than this was missed, and the misfire policy decides about it."""

MOMENT = timedelta(seconds=1)
"""Before another try, where a locked row or the database stood in the way."""

MOST_MISSED = 10_000
"""The number of missed ticks that misfire="all" makes up for. Older ones are dropped."""

_BITE = 1000
"""The most ticks of a schedule that become jobs in one statement."""

_MOST_BITES = MOST_MISSED // _BITE + 1
_LONGEST_WAIT = timedelta(seconds=5)
_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Definition:
    """A schedule as the code declares it."""

    name: str
    cron: Cron
    misfire: Misfire
    overlap: Overlap

    @classmethod
    def parse(
        cls, name: str, expression: str, timezone: str, misfire: Misfire, overlap: Overlap
    ) -> Definition:
        if misfire not in ("skip", "once", "all"):
            raise ScheduleError(f'misfire must be "skip", "once" or "all", got {misfire!r}')
        if overlap not in ("skip", "allow"):
            raise ScheduleError(f'overlap must be "skip" or "allow", got {overlap!r}')
        return cls(name, Cron.parse(expression, timezone), misfire, overlap)


class DueSlots(NamedTuple):
    """The ticks to enqueue now, and the tick to wait for next."""

    slots: list[datetime]
    next_run: datetime
    dropped: bool
    """Ticks before the last `MOST_MISSED` were missed too, and are not enqueued."""


def due_slots(cron: Cron, first: datetime, now: datetime, misfire: str) -> DueSlots:
    """The ticks from `first` to now that become jobs.

    Ticks found in time are each enqueued. Of the missed ones "skip" takes none, "once" the last,
    "all" the last `MOST_MISSED`, in bites.
    """
    late = now - GRACE
    if first >= late:
        return DueSlots([first, *cron.between(first, now, _BITE).times], cron.after(now), False)
    missed, dropped = _missed(cron, first, late, misfire)
    if len(missed) > _BITE:
        return DueSlots(missed[:_BITE], missed[_BITE], dropped)
    in_time = cron.between(late - _INSTANT, now, _BITE).times
    return DueSlots([*missed, *in_time], cron.after(now), dropped)


def _missed(cron: Cron, first: datetime, late: datetime, misfire: str) -> TickTimes:
    """The ticks from `first` to before `late` that are made up for, and whether more are dropped.

    `first` counts whatever the expression says, since a person may have written it to the row.
    """
    if misfire == "skip":
        return TickTimes([], more=False)
    most = MOST_MISSED if misfire == "all" else 1
    latest, more = cron.latest(first, late - _INSTANT, most)
    if len(latest) < most:
        return TickTimes([first, *latest], more=False)
    return TickTimes(latest, more=misfire == "all" and (more or len(latest) == most))


async def tick(store: Store, names: Sequence[str], *, bites: int = _MOST_BITES) -> list[JobId]:
    """Enqueue what is due, of each schedule at most `bites` times a bounded number of ticks.

    Return the ids of the jobs made here.
    """
    made: list[JobId] = []
    for _ in range(bites if names else 0):
        now = await store.jobs.now()
        due = await store.schedules.due(names, now)
        taken = [await _advance(store, schedule, now) for schedule in due]
        made += [id_ for ids in taken for id_ in ids or ()]
        # The rest is locked by another session. To try again at once would spin.
        if all(ids is None for ids in taken):
            break
    return made


def until_next(schedules: Iterable[Schedule], ticked: datetime, now: datetime) -> timedelta:
    """Return the time until the next tick, where all that was due at `ticked` has been tried."""
    waits = [
        # It is unknown when the locked row of a tick will be free.
        MOMENT if schedule.next_run <= ticked else schedule.next_run - now
        for schedule in schedules
    ]
    return max(timedelta(0), min([*waits, _LONGEST_WAIT]))


async def set_back(store: Store, schedules: Iterable[Schedule], now: datetime) -> bool:
    """Go on with the next tick from now where the clock was set back; whether any schedule moved.

    Otherwise its ticks would pause until the clock reaches the instant that it once showed. A
    schedule that was changed in the future is the proof. One that would pass over a single tick is
    left alone: that tick became a job before the clock was set back.
    """
    moved = False
    for schedule in schedules:
        if schedule.updated - now <= GRACE:
            continue
        cron = Cron.parse(schedule.expression, schedule.timezone)
        next_run = cron.after(now)
        if cron.after(next_run) < schedule.next_run:
            logger.warning(
                "the clock was set back by %s or more: schedule %r goes on with %s instead of %s",
                schedule.updated - now,
                schedule.name,
                next_run,
                schedule.next_run,
            )
            moved = await store.schedules.advance(schedule, [], next_run) is not None or moved
    return moved


async def _advance(store: Store, schedule: Schedule, now: datetime) -> list[JobId] | None:
    cron = Cron.parse(schedule.expression, schedule.timezone)
    due = due_slots(cron, schedule.next_run, now, schedule.misfire)
    made = await store.schedules.advance(schedule, due.slots, due.next_run)
    if made and due.dropped and due.slots[0] > schedule.next_run:
        logger.warning(
            "schedule %r: ticks from %s to %s were missed and are not enqueued; "
            'misfire="all" makes up for the last %d',
            schedule.name,
            schedule.next_run.isoformat(),
            due.slots[0].isoformat(),
            MOST_MISSED,
        )
    return made
