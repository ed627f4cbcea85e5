"""Bugs of waiting: wake-ups that are not sent or not received; ticks that are lost or doubled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from chaos.mutants.base import mutant, patch, rewrite
from holdfast.errors import DatabaseError
from holdfast.models import NewJob
from holdfast.scheduler import tick
from holdfast.stores.postgres import render, schedules
from holdfast.stores.postgres.drivers import listening
from holdfast.stores.postgres.idempotent_enqueue import Inserter
from holdfast.stores.postgres.lanes import Lanes
from holdfast.stores.postgres.leases import PostgresLeases
from holdfast.worker.claim import Claimer
from holdfast.worker.dispatcher import Dispatcher
from holdfast.worker.listen import Listener
from holdfast.worker.upkeep import Lookout, UpkeepDuty

if TYPE_CHECKING:
    from datetime import datetime

    from holdfast.scheduler.cron import Cron


@mutant("no-notify", "wake-up")
def no_notify() -> None:
    """An enqueue sends no NOTIFY."""
    patch(render, "_NEEDED", "false")


@mutant("wakes-dead-workers", "idle worker killed")
def wakes_dead_workers() -> None:
    """An enqueue may wake a worker that has died."""
    patch(render, "_SLEEPS", "true")


@mutant("lost-wake-up-not-found", "woken worker frozen")
def lost_wake_up_not_found() -> None:
    """No worker scans for jobs whose wake-up was lost."""

    async def look(self: Lookout) -> float:
        return self._poll

    patch(Lookout, "_look", look)


@mutant("wake-before-commit", "wake-up for one job")
def wake_before_commit() -> None:
    """An enqueue wakes a worker before it commits."""
    original = Inserter._persist

    async def persist(self: Inserter, statement: str, values: dict[str, object], *rest: Any) -> Any:
        channel = values["channel"]
        if "entrypoint" in values and channel is not None:
            await self._runner.run("wake", entrypoints=[values["entrypoint"]], channel=channel)
            await asyncio.sleep(0.3)
            values["channel"] = None
        return await original(self, statement, values, *rest)

    patch(Inserter, "_persist", persist)


@mutant("upkeep-never-expires", "upkeep holder frozen")
def upkeep_never_expires() -> None:
    """The upkeep stays with a dead or frozen worker for minutes."""
    patch(UpkeepDuty, "_lasts", property(lambda _: 500.0))


@mutant("upkeep-taken-back", "upkeep holder frozen")
def upkeep_taken_back() -> None:
    """A worker takes the upkeep back from the worker that took it over."""
    rewrite("upkeep_hold", "          u.token = :token::uuid\n", "          true\n")


@mutant("due-jobs-not-awaited", "wake-up")
def due_jobs_not_awaited() -> None:
    """A worker does not wake up when a job becomes due."""

    def never(_: Lanes) -> None:
        return None

    patch(Lanes, "next_scan", never)


@mutant("idle-never-claims", "progress")
def idle_never_claims() -> None:
    """A worker that found no job never claims again."""

    async def wait(self: Claimer, _: bool) -> None:
        await self._lease_set.until(lambda: self.stopping, seconds=3600.0)

    patch(Claimer, "_wait", wait)


@mutant("idle-slots", "progress beside a job")
def idle_slots() -> None:
    """A worker claims only while it holds no lease."""

    room = vars(Dispatcher)["room"].fget

    def none_beside(self: Dispatcher) -> int:
        return 0 if len(self._lease_set) else int(room(self))

    patch(Dispatcher, "room", property(none_beside))


@mutant("listens-once", "listener killed")
def listens_once() -> None:
    """A worker whose listening connection broke neither listens again nor polls faster."""

    async def listen(self: Listener) -> None:
        def work() -> None:
            self._signal.listening = True
            self._signal.set()

        try:
            await self._wakeups.listen(work, self._cancellations.hear)
        except DatabaseError:
            await asyncio.Event().wait()

    patch(Listener, "run", listen)


@mutant("no-scan-after-listen", "listener disconnected")
def no_scan_after_listen() -> None:
    """A worker that listens again does not scan for jobs that came in between."""

    async def listen(self: Listener) -> None:
        first = True

        def work() -> None:
            self._signal.listening = True
            self._signal.set()

        def ready_or_work() -> None:
            nonlocal first
            if first or not ready.is_set():
                first = False
                ready.set()
                return
            work()

        while True:
            ready = asyncio.Event()
            self._signal.listening = True
            try:
                await self._wakeups.listen(ready_or_work, self._cancellations.hear)
            except DatabaseError:
                await asyncio.sleep(0.1)

    patch(Listener, "run", listen)


@mutant("no-ping", "listener half open")
def no_ping() -> None:
    """No ping checks a silent listening connection."""

    async def believe(_: Any) -> None:
        return None

    patch(listening, "_ping", believe)


@mutant("never-rescans", "earlier jobs released")
def never_rescans() -> None:
    """A worker never scans below the last job it claimed."""

    def no(_: Lanes) -> bool:
        return False

    patch(Lanes, "may_rescan", no)
    original = PostgresLeases.claim

    async def claim(self: PostgresLeases, rules: Any, **options: Any) -> Any:
        return await original(self, rules, **(options | {"sweep": False}))

    patch(PostgresLeases, "claim", claim)


@mutant("tick-not-unique", "schedule ticks")
def tick_not_unique() -> None:
    """Several schedulers fire the same tick."""
    rewrite(
        "schedule_advance",
        " and s.next_run = :seen::timestamptz",
        " and s.next_run >= :seen::timestamptz",
    )
    rewrite("schedule_advance", "    for update skip locked\n", "    for update\n")
    original = tick._advance

    async def slowly(store: Any, schedule: Any, now: datetime) -> Any:
        await asyncio.sleep(0.2)
        return await original(store, schedule, now)

    def keyless(name: str, slot: datetime) -> NewJob:
        return NewJob(name, headers={"schedule": name, "slot": slot.isoformat()})

    patch(tick, "_advance", slowly)
    patch(schedules, "tick_job", keyless)


@mutant("next-tick-from-now", "schedule ticks")
def next_tick_from_now() -> None:
    """The tick after a late one is computed from the time at which the late one was found."""

    def due_slots(
        cron: Cron, first: datetime, now: datetime, misfire: str
    ) -> tuple[list[datetime], datetime]:
        return [first], cron.after(now)

    patch(tick, "due_slots", due_slots)
