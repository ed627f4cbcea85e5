"""Bugs of the worker's machinery: its own errors charged to jobs, leases that never end."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from chaos.mutants.base import mutant, patch
from holdfast.worker.loop_watchdog import LoopWatchdog
from holdfast.worker.rescue import Rescue
from holdfast.worker.steps import Steps
from holdfast.worker.work_signal import WorkSignal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import timedelta


@mutant("alarm-asks-its-handle", "again at once")
def alarm_asks_its_handle() -> None:
    """The worker asks its timer for its instant, which not every event loop's timer knows."""

    def set_in(self: WorkSignal, delay: timedelta) -> None:
        loop = asyncio.get_running_loop()
        when = loop.time() + delay.total_seconds()
        timer: Any = self._timer
        if timer is None or timer.when() > when:
            self.cancel()
            self._timer = loop.call_at(when, self._fire)

    patch(WorkSignal, "set_in", set_in)


@mutant("step-ends-process", "step fails")
def step_ends_process() -> None:
    """An unexpected error in a step ends the process, and its jobs pay for it."""

    async def keep(
        _: Steps, name: str, run: Callable[[], Awaitable[None]], rounds: object, **__: object
    ) -> None:
        try:
            await run()
        except Exception:
            os._exit(70)

    patch(Steps, "keep", keep)


@mutant("lease-without-handler", "lease misplaced")
def lease_without_handler() -> None:
    """A lease is renewed whether or not anything is done about its job."""

    def believe(_: Rescue) -> None:
        return None

    patch(Rescue, "release_unattended", believe)


@mutant("blocked-for-ever", "loop blocked")
def blocked_for_ever() -> None:
    """A handler that blocks the event loop keeps its lease, and those of the others, for ever."""

    def judge(_: LoopWatchdog) -> None:
        return None

    patch(LoopWatchdog, "_judge", judge)


@mutant("blocked-takes-neighbours", "loop blocked")
def blocked_takes_neighbours() -> None:
    """The jobs beside a blocking handler are charged with the end of their worker."""

    async def give_up(self: Rescue, _: object, blocked: object) -> None:
        if self._end_process is not None:
            self._end_process(str(blocked))

    patch(Rescue, "give_up", give_up)
