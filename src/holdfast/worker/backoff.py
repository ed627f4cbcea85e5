"""Pauses between tries while the database is unreachable: capped, jittered, logged rarely."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.repeated import RepeatedLog

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("holdfast.worker")

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 1.0


class Backoff:
    """Pauses between tries. Logs an error at most once a minute, and its end if it was logged.

    A success does not reset that minute: a database that comes and goes every second would fill
    the log.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.tries = 0
        """Failures since the last success."""
        self._logged = False
        self._log = RepeatedLog(logger, clock=clock)

    def reset(self) -> None:
        if self._logged:
            logger.info("database connection restored")
        self.tries = 0
        self._logged = False

    def pause(self, what: str, error: Exception) -> float:
        """Return the seconds to wait. They are few, so that work resumes soon after the database
        does."""
        message = "%s: %s; retrying"
        self._logged = self._log.warning(message, what, error) or self._logged
        limit = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0**self.tries)
        self.tries = min(self.tries + 1, 10)
        return limit * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
