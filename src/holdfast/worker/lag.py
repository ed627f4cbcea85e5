"""Notices from another thread that the worker's event loop stands still, and for whom."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from holdfast.clock import monotonic

if TYPE_CHECKING:
    from holdfast.worker.hand import Hand

logger = logging.getLogger("holdfast.worker")

_LOOK_EVERY = 0.5
_LIMIT = 2.0


class LagWatch:
    """Asks the event loop for a sign of life; while it gives none, nothing else can say so."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand
        self._home = asyncio.get_running_loop()
        self._asked: float | None = None
        self._told = False

    async def run(self) -> None:
        """In the event loop of the other thread, until cancelled."""
        while True:
            self._look()
            await asyncio.sleep(_LOOK_EVERY)

    def _look(self) -> None:
        asked = self._asked
        if asked is None:
            self._asked = monotonic()
            self._home.call_soon_threadsafe(self._answer)
            return
        self._hand.standing_still = True
        if not self._told and monotonic() - asked > _LIMIT:
            self._told = True
            logger.warning(
                "%s has blocked the event loop for more than %g s: no other job, timeout or signal "
                'is heeded; let it await, or make it a plain def with executor="thread"',
                self._culprit(),
                _LIMIT,
            )

    def _culprit(self) -> str:
        task = asyncio.current_task(self._home)
        for lease in self._hand.snapshot():
            if task is not None and lease.task is task:
                return f"the handler of {lease.entrypoint.name!r} (job {lease.job.id})"
        return "something"

    def _answer(self) -> None:
        if self._hand.standing_still and self._asked is not None:
            self._hand.excuse(monotonic() - self._asked)
        self._asked, self._told = None, False
