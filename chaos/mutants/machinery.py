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


@mutant("timer-handle-without-when", "immediate retries")
def timer_handle_without_when() -> None:
    """The worker calls `when()` on a timer handle that may not have it."""

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
    """An unexpected error in a step ends the process, and its jobs count a recovery."""

    async def keep(
        _: Steps, name: str, run: Callable[[], Awaitable[None]], rounds: object, **__: object
    ) -> None:
        try:
            await run()
        except Exception:
            os._exit(70)

    patch(Steps, "keep", keep)


@mutant("lease-without-handler", "lost before start")
def lease_without_handler() -> None:
    """A lease is renewed although its job neither runs nor waits for a slot."""

    def believe(_: Rescue) -> None:
        return None

    patch(Rescue, "release_unattended", believe)


@mutant("blocked-keeps-leases", "loop blocked")
def blocked_keeps_leases() -> None:
    """A worker whose event loop is blocked renews its leases without end."""

    def judge(_: LoopWatchdog) -> None:
        return None

    patch(LoopWatchdog, "_judge", judge)


@mutant("blocked-charges-neighbours", "loop blocked")
def blocked_charges_neighbours() -> None:
    """The jobs beside a handler that blocks the event loop count a recovery."""

    async def give_up(self: Rescue, _: object, blocked: object) -> None:
        if self._end_process is not None:
            self._end_process(str(blocked))

    patch(Rescue, "give_up", give_up)
