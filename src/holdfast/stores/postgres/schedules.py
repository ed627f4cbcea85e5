"""Recurring jobs: schedules as rows, and the jobs of their ticks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import ConnectionLost
from holdfast.models import JobId, Schedule, tick_job
from holdfast.stores.postgres import rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from holdfast.settings import Names
    from holdfast.stores.postgres.jobs import PostgresJobs
    from holdfast.stores.postgres.runner import Runner


class PostgresSchedules:
    """The schedules table, and the step that turns its ticks into jobs."""

    def __init__(self, runner: Runner, names: Names, jobs: PostgresJobs) -> None:
        self._runner = runner
        self._channel = names.channel
        self._jobs = jobs

    async def register(
        self, name: str, expression: str, timezone: str, misfire: str, overlap: str, first: datetime
    ) -> Schedule:
        [row] = await self._runner.run(
            "schedule_register",
            name=name,
            expression=expression,
            timezone=timezone,
            misfire=misfire,
            overlap=overlap,
            first=first,
        )
        return rows.schedule(row)

    async def due(self, names: Sequence[str], now: datetime) -> list[Schedule]:
        found = await self._runner.run("schedule_due", names=list(names), at=now)
        return [rows.schedule(row) for row in found]

    async def advance(
        self, schedule: Schedule, slots: Sequence[datetime], next_run: datetime
    ) -> list[JobId] | None:
        ticks = [tick_job(schedule.name, slot) for slot in slots]
        found = await self._runner.run(
            "schedule_advance",
            id=schedule.id,
            seen=schedule.next_run,
            next_run=next_run,
            last_run=slots[-1] if slots else None,
            keys=[tick.dedupe_key for tick in ticks],
            headers=[rows.headers(tick.headers) for tick in ticks],
            channel=self._channel,
        )
        return [JobId(job_id) for job_id in found[0][1]] if found else None

    async def all(self) -> list[Schedule]:
        return [rows.schedule(row) for row in await self._runner.run("schedule_all")]

    async def set_paused(self, name: str, paused: bool, next_run: datetime | None) -> bool:
        found = await self._runner.run(
            "schedule_pause", name=name, paused=paused, next_run=next_run
        )
        return bool(found)

    async def trigger(self, schedule: Schedule, slot: datetime) -> JobId:
        [job_id] = await self._jobs.insert([tick_job(schedule.name, slot)], "raise")
        if job_id is None:  # "raise" inserts or raises
            raise ConnectionLost(f"schedule {schedule.name!r} could not be triggered")
        return job_id

    async def remove(self, name: str) -> bool:
        return bool(await self._runner.run("schedule_remove", name=name))
