"""Keeps the steps of a worker running: an unexpected error restarts a step, not the worker.

An error in the worker's own code is a bug of Holdfast. The step that raised it is restarted after a
pause while the leases are kept, so that no job pays for it. A vital step that fails again and again
without one completed round ends the worker, which then releases its jobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.errors import PrivilegeMissing, SchemaMissing
from holdfast.events import Observers, StepFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

logger = logging.getLogger("holdfast.worker")

MOST_IN_A_ROW = 5
"""A vital step that failed this often without one completed round ends the worker."""

PATIENCE_SECONDS = 10.0
"""It does not end before it has failed for this long."""

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
_QUIET_SECONDS = 10.0
"""Further errors of a step are logged with a traceback at most once in this time."""


class Steps:
    """Runs the steps of one worker and counts their unexpected errors.

    Safe to use from the renewing thread: observers are notified in the worker's event loop.
    """

    def __init__(self, observers: Observers, worker: str) -> None:
        self._observers = observers
        self._worker = worker
        self._home = asyncio.get_running_loop()
        self._logged: dict[str, float] = {}
        self.failures: Counter[str] = Counter()
        """Unexpected errors of each step since the worker started."""

    async def keep(
        self,
        name: str,
        run: Callable[[], Awaitable[None]],
        rounds: Callable[[], int],
        *,
        vital: bool = False,
        longest: float | None = None,
        patience: float = 0.0,
    ) -> None:
        """Run a step until it returns, restarting it after unexpected errors.

        `rounds` returns how many rounds the step has completed: a change is progress. `longest`
        caps the pause before a restart. A vital step without progress ends after at least
        `patience`.
        """
        in_a_row, since, completed, pause = 0, 0.0, rounds(), 0.0
        while True:
            try:
                return await run()
            except PrivilegeMissing:
                # The step decided that waiting cannot help.
                raise
            except Exception as error:
                now = monotonic()
                if in_a_row == 0 or rounds() != completed:
                    in_a_row, since, completed, pause = 0, now, rounds(), FIRST_PAUSE_SECONDS
                # Tables that are missing may come back, as after a restore.
                in_a_row += not isinstance(error, SchemaMissing)
                over = now - since >= max(patience, PATIENCE_SECONDS)
                self.failed(name, error)
                if vital and over and in_a_row >= MOST_IN_A_ROW:
                    logger.critical(
                        "the step %s failed %d times in a row without success; the worker ends "
                        "and releases its jobs",
                        name,
                        in_a_row,
                    )
                    raise
            await asyncio.sleep(min(pause, longest or pause))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def failed(self, name: str, error: BaseException) -> None:
        """Log and count an unexpected error of a step that goes on."""
        self.failures[name] += 1
        now = monotonic()
        if now - self._logged.get(name, -_QUIET_SECONDS) >= _QUIET_SECONDS:
            self._logged[name] = now
            logger.error(
                "unexpected error in the worker's step %s (number %d); it goes on, and the leases "
                "are kept; please report this",
                name,
                self.failures[name],
                exc_info=error,
            )
        try:
            self._home.call_soon_threadsafe(
                self._observers.notify, StepFailed(self._worker, name, error)
            )
        except RuntimeError:
            # The event loop is closed: nobody is left to be notified.
            return
