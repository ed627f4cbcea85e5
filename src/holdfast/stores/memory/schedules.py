"""The recurring jobs of the memory store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lifecycle import ACTIVE
from holdfast.models import JobId, Schedule, tick_job

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from holdfast.stores.memory.state import State

_ONE_AT_A_TIME = "skip"


class MemorySchedules:
    """The Schedules facet: advancing one and enqueuing its ticks is one step."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._schedules: dict[str, Schedule] = {}
        self._last_id = 0

    async def register(
        self, name: str, expression: str, timezone: str, misfire: str, overlap: str, first: datetime
    ) -> Schedule:
        known = self._schedules.get(name)
        if known is None:
            schedule = self._create(name, expression, timezone, misfire, overlap, first)
        else:
            times_changed = (known.expression, known.timezone) != (expression, timezone)
            schedule = known._replace(
                expression=expression,
                timezone=timezone,
                misfire=misfire,
                overlap=overlap,
                next_run=first if times_changed else known.next_run,
            )
            if schedule != known:
                schedule = schedule._replace(updated=self._state.now())
        self._schedules[name] = schedule
        return schedule

    async def due(self, names: Sequence[str], now: datetime) -> list[Schedule]:
        wanted = set(names)
        due = [
            schedule
            for schedule in self._schedules.values()
            if schedule.name in wanted and not schedule.paused and schedule.next_run <= now
        ]
        return sorted(due, key=lambda schedule: (schedule.next_run, schedule.id))

    async def advance(
        self, schedule: Schedule, slots: Sequence[datetime], next_run: datetime
    ) -> list[JobId] | None:
        current = self._schedules.get(schedule.name)
        if current is None or current.paused:
            return None
        if (current.id, current.next_run) != (schedule.id, schedule.next_run):
            return None
        ticks = [tick_job(current.name, slot) for slot in self._allowed(current, slots)]
        ids = self._state.insert(ticks, "skip")
        self._schedules[current.name] = current._replace(
            next_run=next_run,
            last_run=slots[-1] if slots else current.last_run,
            updated=self._state.now(),
        )
        return [id_ for id_ in ids if id_ is not None]

    async def all(self) -> list[Schedule]:
        return sorted(self._schedules.values(), key=lambda schedule: schedule.name)

    async def set_paused(self, name: str, paused: bool, next_run: datetime | None) -> bool:
        current = self._schedules.get(name)
        if current is None:
            return False
        self._schedules[name] = current._replace(
            paused=paused,
            next_run=current.next_run if next_run is None else next_run,
            updated=self._state.now(),
        )
        return True

    async def trigger(self, schedule: Schedule, slot: datetime) -> JobId:
        ids = self._state.insert([tick_job(schedule.name, slot)], "raise")
        return next(id_ for id_ in ids if id_ is not None)

    async def remove(self, name: str) -> bool:
        return self._schedules.pop(name, None) is not None

    def _create(
        self, name: str, expression: str, timezone: str, misfire: str, overlap: str, first: datetime
    ) -> Schedule:
        now = self._state.now()
        self._last_id += 1
        return Schedule(
            id=self._last_id,
            name=name,
            expression=expression,
            timezone=timezone,
            misfire=misfire,
            overlap=overlap,
            paused=False,
            next_run=first,
            last_run=None,
            created=now,
            updated=now,
        )

    def _allowed(self, schedule: Schedule, slots: Sequence[datetime]) -> Sequence[datetime]:
        """The slots that may become jobs: where ticks must not overlap, the first if none runs."""
        if schedule.overlap != _ONE_AT_A_TIME:
            return slots
        return [] if self._is_active(schedule) else slots[:1]

    def _is_active(self, schedule: Schedule) -> bool:
        return any(
            row.status in ACTIVE
            and row.entrypoint == schedule.entrypoint
            and (row.headers or {}).get("schedule") == schedule.name
            for row in self._state.rows.values()
        )
