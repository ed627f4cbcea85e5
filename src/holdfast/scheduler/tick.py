"""Due schedules -> jobs. Every tick is taken by exactly one scheduler, in one statement."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from holdfast.errors import ScheduleError
from holdfast.scheduler.cron import Cron

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.models import JobId, Schedule
    from holdfast.ports import Store

Misfire = Literal["skip", "once", "all"]
Overlap = Literal["skip", "allow"]

GRACE = timedelta(seconds=10)
"""A tick that is found later than this was missed, and the misfire policy decides about it."""

MOMENT = timedelta(seconds=1)
"""Before another try, where a locked row or the database stood in the way."""

_LONGEST_WAIT = timedelta(seconds=5)
_MOST = 1000


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


def due_slots(
    cron: Cron, first: datetime, now: datetime, misfire: str
) -> tuple[list[datetime], datetime]:
    """The ticks to enqueue, from `first` to now, and the one to wait for next.

    Ticks found in time are each enqueued. Of those that were missed "skip" takes none, "once" the
    last, "all" every one; a long tail of them comes in several steps.
    """
    later, more = cron.between(first, now, _MOST)
    slots = [first, *later]
    missed = [slot for slot in slots if now - slot > GRACE]
    in_time = slots[len(missed) :]
    if misfire == "skip":
        missed = []
    elif misfire == "once":
        missed = [] if more else missed[-1:]
    return [*missed, *in_time], cron.after(slots[-1])


async def tick(store: Store, names: Sequence[str]) -> list[JobId]:
    """Enqueue whatever is due; the ids of the jobs made here."""
    made: list[JobId] = []
    while names:
        now = await store.jobs.now()
        due = await store.schedules.due(names, now)
        taken = [await _advance(store, schedule, now) for schedule in due]
        made += [id_ for ids in taken for id_ in ids or ()]
        # What is left is locked by somebody, and to try again at once would be to spin.
        if all(ids is None for ids in taken):
            break
    return made


def until_next(schedules: Iterable[Schedule], ticked: datetime, now: datetime) -> timedelta:
    """How long to wait for the next tick, where all that was due at `ticked` has been tried."""
    waits = [
        # Of a tick that was tried in vain nobody can say when its row is free.
        MOMENT if schedule.next_run <= ticked else schedule.next_run - now
        for schedule in schedules
    ]
    return max(timedelta(0), min([*waits, _LONGEST_WAIT]))


async def _advance(store: Store, schedule: Schedule, now: datetime) -> list[JobId] | None:
    cron = Cron.parse(schedule.expression, schedule.timezone)
    slots, next_run = due_slots(cron, schedule.next_run, now, schedule.misfire)
    return await store.schedules.advance(schedule, slots, next_run)
