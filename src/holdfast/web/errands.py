"""Acts that take time: a requeue at a rate goes on in this process, and pages show how far."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from holdfast.app import Holdfast
from holdfast.errors import HoldfastError
from holdfast.models import JobId, Requeued

MOST_ERRANDS = 20
_KEPT = 10
"""Errands that have ended are shown until others push them out."""

_log = logging.getLogger("holdfast.web")


@dataclass(eq=False, slots=True)
class Errand:
    """A requeue of many jobs, some a second. Those not reached stay held if the process ends."""

    number: int
    actor: str
    reason: str | None
    total: int
    rate: float
    done: int = 0
    went: int = 0
    fault: str = ""
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def runs(self) -> bool:
        return self.task is not None and not self.task.done()


class Errands:
    """The errands of one process."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._errands: list[Errand] = []
        self._number = 0

    def all(self) -> list[Errand]:
        return list(self._errands)

    def requeue(
        self, ids: Sequence[JobId], rate: float, *, actor: str, reason: str | None, cap: int | None
    ) -> Errand:
        """Begin to requeue the jobs, so many a second."""
        if sum(errand.runs for errand in self._errands) >= MOST_ERRANDS:
            raise HoldfastError(f"{MOST_ERRANDS} bulk acts run already; wait for one to end")
        self._number += 1
        errand = Errand(self._number, actor, reason, len(ids), rate)
        errand.task = asyncio.get_running_loop().create_task(self._run(errand, list(ids), cap))
        running = [each for each in self._errands if each.runs]
        ended = [each for each in self._errands if not each.runs][-_KEPT:]
        self._errands = [*ended, *running, errand]
        return errand

    async def _run(self, errand: Errand, ids: list[JobId], cap: int | None) -> None:
        begun = monotonic()
        try:
            while ids:
                # What is due by now goes in one statement, so a slow server does not slow the rate.
                due = max(1, int((monotonic() - begun) * errand.rate) - errand.done)
                some, ids = ids[:due], ids[due:]
                outcomes = await self._hf.queries.requeue_jobs(
                    some, actor=errand.actor, reason=errand.reason, max_attempts=cap
                )
                errand.done += len(some)
                errand.went += sum(each is Requeued.REQUEUED for each in outcomes.values())
                next_at = begun + (errand.done + 1) / errand.rate
                await asyncio.sleep(max(0.0, next_at - monotonic()))
        except HoldfastError as error:
            _log.warning("a bulk requeue of %s ended early: %s", errand.actor, error)
            errand.fault = str(error)

    def stop(self, number: int, actor: str) -> Errand | None:
        """End an errand before its time. Return None if it has ended already."""
        for errand in self._errands:
            if errand.number == number and errand.task is not None and errand.runs:
                errand.task.cancel()
                errand.fault = f"stopped by {actor}"
                return errand
        return None

    def close(self) -> None:
        for errand in self._errands:
            if errand.task is not None:
                errand.task.cancel()
