"""The SchedulerManager: registers schedules, and turns their ticks into jobs as they come."""

from __future__ import annotations

import asyncio
import functools
import logging
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError, ScheduleNotFound
from holdfast.events import Observers, StepFailed
from holdfast.repeated import RepeatedLog
from holdfast.scheduler.cron import Cron
from holdfast.scheduler.tick import MOMENT, Definition, Misfire, Overlap, set_back, tick, until_next

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from holdfast.models import Context, Job, JobId, Schedule
    from holdfast.ports import Store

logger = logging.getLogger("holdfast.scheduler")

__all__ = ["Misfire", "Overlap", "SchedulerManager"]

MOST_IN_A_ROW = 5
"""A scheduler that failed this often without one completed round ends, and with it the worker."""

PATIENCE_SECONDS = 10.0
"""It does not end before it has failed for this long."""

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0


class SchedulerManager:
    """Any number of them may run: a tick belongs to the first that takes it."""

    _store: Store

    def __init__(
        self,
        store: Store | None = None,
        *,
        shutdown: asyncio.Event | None = None,
        observers: Observers | None = None,
        worker: str = "",
    ) -> None:
        if store is not None:
            self._store = store
        self._shutdown = shutdown or asyncio.Event()
        self._definitions: dict[str, Definition] = {}
        self._registered: dict[str, Schedule] = {}
        self._observers = Observers() if observers is None else observers
        self._worker = worker
        self.failures = 0
        """Unexpected errors since the start. Each was logged."""
        self._in_a_row, self._since = 0, 0.0

    def renew(self, shutdown: asyncio.Event) -> None:
        """Stop when this event is set, from the next run on, which may be in another loop."""
        self._shutdown = shutdown

    def use(self, store: Store) -> None:
        self._store = store

    def add(
        self, name: str, expression: str, timezone: str, misfire: Misfire, overlap: Overlap
    ) -> None:
        """Declare a schedule; it is written to the database when the scheduler starts."""
        self._definitions[name] = Definition.parse(name, expression, timezone, misfire, overlap)

    def tick_of(self, job: Job) -> Schedule:
        """The schedule as its handler gets it, with the slot the job stands for."""
        slot = (job.headers or {}).get("slot")
        instant = datetime.fromisoformat(slot) if slot else job.execute_after
        return self._registered[job.entrypoint]._replace(slot=instant)

    def on_ticks(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """A handler of schedules as one of the jobs that their ticks are."""

        @functools.wraps(func)
        def handle(job: Job, *context: Context) -> Any:
            return func(self.tick_of(job), *context)

        return handle

    async def register(self) -> None:
        """Write the declared schedules to the database."""
        now = await self._store.jobs.now()
        for name, declared in self._definitions.items():
            self._registered[name] = await self._store.schedules.register(
                name,
                declared.cron.expression,
                declared.cron.timezone,
                declared.misfire,
                declared.overlap,
                declared.cron.after(now),
            )

    async def tick(self) -> list[JobId]:
        """Enqueue all ticks that are due now."""
        return await tick(self._store, list(self._definitions))

    async def _tick_once(self) -> None:
        """Enqueue a bounded number of due ticks of each schedule. The next come a second later."""
        await tick(self._store, list(self._definitions), bites=1)

    @asynccontextmanager
    async def running(self, *, once: bool = False) -> AsyncIterator[None]:
        """Tick beside whatever runs inside; with `once` only at the beginning."""
        if not self._definitions:
            yield
            return
        await self.register()
        # Jobs need not wait until all ticks of a long pause are enqueued.
        await self._tick_once() if not once else await self.tick()
        task = None if once else asyncio.get_running_loop().create_task(self.run())
        if task is not None:
            task.add_done_callback(self._ended)
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A worker whose schedules have stopped must not look healthy: it stops with the error."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the scheduler failed, so the worker stops: %s", error)
            self._shutdown.set()

    async def run(self) -> None:
        """Until shutdown is set. Raises an unexpected error only if it repeats without progress."""
        trouble = RepeatedLog(logger)
        self._in_a_row = 0
        while not self._shutdown.is_set():
            try:
                ticked = await self._store.jobs.now()
                await self._tick_once()
                nap = await self._until_next(ticked)
                self._in_a_row = 0
            except DatabaseError as error:
                trouble.warning("schedules wait for the database: %s", error)
                nap = MOMENT
            except Exception as error:
                nap = self._contain(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(nap.total_seconds()):
                    await self._shutdown.wait()

    def _contain(self, error: Exception) -> timedelta:
        """Log and count an error of our own. Return the pause before the next round."""
        if self._in_a_row == 0:
            self._since = monotonic()
        self.failures += 1
        self._in_a_row += 1
        over = monotonic() - self._since >= PATIENCE_SECONDS
        if over and self._in_a_row >= MOST_IN_A_ROW:
            raise error
        logger.error(
            "unexpected error in the scheduler (number %d); it goes on; please report this",
            self.failures,
            exc_info=error,
        )
        self._observers.notify(StepFailed(self._worker, "schedule", error))
        pause = FIRST_PAUSE_SECONDS * 2 ** min(self._in_a_row - 1, 10)
        return timedelta(seconds=min(pause, LONGEST_PAUSE_SECONDS))

    async def _until_next(self, ticked: datetime) -> timedelta:
        now = await self._store.jobs.now()
        waiting = [
            schedule
            for schedule in await self._store.schedules.all()
            if schedule.name in self._definitions and not schedule.paused
        ]
        if await set_back(self._store, waiting, now):
            return timedelta(0)
        return until_next(waiting, ticked, now)


class ScheduleQueries:
    """The acts of an operator on schedules, whether a worker runs or not."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def use(self, store: Store) -> None:
        """Ask another store from now on, such as that of a server which has just started."""
        self._store = store

    async def list(self) -> list[Schedule]:
        return await self._store.schedules.all()

    async def pause(
        self, name: str, *, actor: str | None = None, reason: str | None = None
    ) -> None:
        """No tick becomes a job until it is resumed; ticks in between are skipped.

        With an `actor`, here and below, `Queries.list_acts()` says who did it and why.
        """
        await self._set_paused(name, True, None)
        await self._record("pause schedule", name, actor, reason)

    async def resume(
        self, name: str, *, actor: str | None = None, reason: str | None = None
    ) -> None:
        """Go on with the next tick from now."""
        schedule = await self._get(name)
        cron = Cron.parse(schedule.expression, schedule.timezone)
        await self._set_paused(name, False, cron.after(await self._store.jobs.now()))
        await self._record("resume schedule", name, actor, reason)

    async def run_now(
        self, name: str, *, actor: str | None = None, reason: str | None = None
    ) -> JobId:
        """Enqueue a job of the schedule at once, besides its ticks."""
        schedule = await self._get(name)
        job_id = await self._store.schedules.trigger(schedule, await self._store.jobs.now())
        await self._record("run schedule", name, actor, reason)
        return job_id

    async def remove(
        self, name: str, *, actor: str | None = None, reason: str | None = None
    ) -> None:
        """Delete the schedule; a worker that declares it writes it again when it starts."""
        if not await self._store.schedules.remove(name):
            raise _unknown(name)
        await self._record("remove schedule", name, actor, reason)

    async def _record(self, act: str, name: str, actor: str | None, reason: str | None) -> None:
        if actor is not None:
            await self._store.pauses.record_act(act, name, actor=actor, reason=reason)

    async def _set_paused(self, name: str, paused: bool, next_run: datetime | None) -> None:
        if not await self._store.schedules.set_paused(name, paused, next_run):
            raise _unknown(name)

    async def _get(self, name: str) -> Schedule:
        for schedule in await self._store.schedules.all():
            if schedule.name == name:
                return schedule
        raise _unknown(name)


def _unknown(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"there is no schedule {name!r}; `holdfast schedules` lists them")
