"""The upkeep: one worker does it for all, and this decides which one.

The worker that holds the duty has its token in a row of the database, with an expiry that it moves
ahead. When the expiry passes, any other worker takes the row. Statements of the upkeep name the
token, so a holder that was frozen and wakes up late changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError, PrivilegeMissing
from holdfast.models import UPKEEP, Duty
from holdfast.repeated import RepeatedLog

if TYPE_CHECKING:
    from holdfast.ports import Upkeep, Wakeups
    from holdfast.settings import WorkerSettings
    from holdfast.worker.leases import LeaseSet

logger = logging.getLogger("holdfast.worker")

_LASTS_SECONDS = 3.0
"""A holder that is silent for this long loses the duty. With the pause of those who ask it is less
than the five seconds in which stale leases are promised to be found."""

_LEAST_SECONDS = 1.0
_RENEWALS = 3
"""A holder asks this many times before its duty expires."""

_ASK_SECONDS_PER_WORKER = 0.4
_REPORTING_FLEET = 16
"""From this many workers on, their reports are enough to find a duty that nobody holds."""

_REPORTING_SECONDS = 60.0
_GRACE = timedelta(seconds=0.05)
"""A job that is due for less than this is on its way to a worker that knew of it."""

_LOOK_TIME_DIVISOR = 20
"""A look that takes one second is followed by this many seconds without another."""

_RELEASE_SECONDS = 0.8


class UpkeepDuty:
    """Whether this worker does the upkeep. Without a place to say so every worker does."""

    def __init__(
        self, upkeep: Upkeep | None, lease_set: LeaseSet, settings: WorkerSettings, worker: str
    ) -> None:
        self._upkeep = upkeep
        self._lease_set = lease_set
        self._sweep_seconds = settings.sweep_interval.total_seconds()
        self._worker = worker
        self._duty = Duty(uuid4(), held=False)
        self._until = 0.0
        """When the duty expires, by this worker's clock and counted from before it asked."""
        self._vacant = asyncio.Event()
        self._taken = asyncio.Event()
        self._log = RepeatedLog(logger)
        self.others = False
        """Whether another worker does the upkeep, as far as this one knows."""
        self.rounds = 0

    @property
    def current(self) -> Duty | None:
        """The duty that the statements of the upkeep name."""
        if self._upkeep is None:
            return None
        return self._duty if self.held else Duty(self._duty.token, held=False)

    @property
    def held(self) -> bool:
        return self._upkeep is None or (self._duty.held and monotonic() < self._until)

    @property
    def workers(self) -> int:
        """How many workers live, as this one last heard."""
        return self._duty.workers

    @property
    def alone(self) -> bool:
        """Whether no other worker is known to live."""
        return self._upkeep is None or self._duty.workers <= 1

    def vacant(self) -> None:
        """Ask now, because a report found that nobody does the upkeep."""
        self.others = False
        self._vacant.set()

    async def pause(self, seconds: float) -> None:
        """Wait for that long, jittered, or until this worker has taken the duty."""
        self._taken.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds * _jitter()):
                await self._taken.wait()

    async def run(self) -> None:
        """Hold the duty, or ask for it, until cancelled."""
        while self._upkeep is not None:
            try:
                pause = await self._round(self._upkeep)
            except DatabaseError as error:
                self.others = False
                level = logging.WARNING if isinstance(error, PrivilegeMissing) else logging.DEBUG
                self._log.log(level, "the upkeep waits for the database: %s", error)
                pause = _LEAST_SECONDS
            self.rounds += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._vacant.wait()
            self._vacant.clear()

    async def release(self) -> None:
        """Let another worker take the duty at once."""
        if self._upkeep is None or not self._duty.held:
            return
        duty, self._duty = self._duty, Duty(uuid4(), held=False)
        with suppress(DatabaseError, TimeoutError):
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._upkeep.release(UPKEEP, duty.token)

    async def _round(self, upkeep: Upkeep) -> float:
        """Return the seconds until the next question."""
        distrusted = any(not lease.trusted for lease in self._lease_set.snapshot())
        if distrusted and self._duty.held and not self.alone:
            # A sweep spares its own worker's leases, whose outcomes may still be recorded. Another
            # worker's sweep does not.
            await self.release()
            return 2 * self._patience
        await self._ask(upkeep)
        return self._next()

    async def _ask(self, upkeep: Upkeep) -> None:
        held = self.held
        # Each tenure has a token of its own.
        token = self._duty.token if held else uuid4()
        sent, lasts = monotonic(), self._lasts
        self._duty = await upkeep.hold(
            UPKEEP, self._worker, token, lasts=timedelta(seconds=lasts), sent=sent
        )
        self._until = sent + lasts
        self._lease_set.contact.made()
        self.others = not self._duty.held
        if self._duty.held and not held:
            self._taken.set()
            self._lease_set.changed.set()

    @property
    def _lasts(self) -> float:
        if self.alone:
            # Nobody else could take it: one question a sweep is enough.
            return max(_LEAST_SECONDS, 2 * self._sweep_seconds)
        return min(_LASTS_SECONDS, max(_LEAST_SECONDS, 0.6 * self._sweep_seconds))

    @property
    def _patience(self) -> float:
        """The pause between the questions of a worker that does not hold the duty, in a small
        fleet."""
        return max(self._lasts * 2 / 3, _ASK_SECONDS_PER_WORKER * self._duty.workers)

    def _next(self) -> float:
        if self._duty.held:
            return self._sweep_seconds * _jitter() if self.alone else self._lasts / _RENEWALS
        if self._duty.workers >= _REPORTING_FLEET:
            return _REPORTING_SECONDS
        return self._patience * _jitter()


class Lookout:
    """Looks for due jobs in place of the workers that sleep, and has one of them woken."""

    def __init__(self, upkeep: Upkeep, wakeups: Wakeups, duty: UpkeepDuty, poll: timedelta) -> None:
        self._upkeep = upkeep
        self._wakeups = wakeups
        self._duty = duty
        self._poll = poll.total_seconds()
        self.rounds = 0

    async def run(self) -> None:
        """Look until cancelled."""
        pause = self._poll
        while True:
            await asyncio.sleep(pause)
            pause = self._poll
            if self._duty.alone or not self._duty.held:
                continue
            try:
                pause = await self._look()
            except DatabaseError as error:
                logger.debug("looking for due jobs waits for the database: %s", error)
            self.rounds += 1

    async def _look(self) -> float:
        """Wake a worker for overdue jobs. Return the seconds until the next look."""
        began = monotonic()
        found = await self._upkeep.look(_GRACE)
        rest = (monotonic() - began) * _LOOK_TIME_DIVISOR
        for entrypoint in found.overdue:
            await self._wakeups.pass_on([entrypoint])
        if found.recovered:
            await self._wakeups.recovered()
        if found.next_due is None:
            return max(self._poll, rest)
        soon = (found.next_due + 2 * _GRACE).total_seconds()
        return max(min(self._poll, soon), rest)


def _jitter() -> float:
    """Vary a time, so that the workers of a fleet do not ask together."""
    return random.uniform(0.7, 1.0)  # noqa: S311 - not a secret
