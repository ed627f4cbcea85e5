"""Waiting for a database that is away: capped, jittered, and not too loud."""

from __future__ import annotations

import logging
import random

from holdfast.clock import monotonic

logger = logging.getLogger("holdfast.worker")

_FIRST = 0.1
_LONGEST = 1.0
_QUIET = 10.0


class Backoff:
    """Pauses between tries; says so at first, and then every ten seconds."""

    def __init__(self) -> None:
        self._tries = 0
        self._said = 0.0

    def reset(self) -> None:
        if self._tries:
            logger.info("the database answers again")
        self._tries = 0
        self._said = 0.0

    def pause(self, what: str, error: Exception) -> float:
        """Seconds to wait: so few that work goes on soon after the database's return."""
        now = monotonic()
        if not self._said or now - self._said > _QUIET:
            logger.warning("%s: %s; trying again until it answers", what, error)
            self._said = now
        limit = min(_LONGEST, _FIRST * 2.0**self._tries)
        self._tries = min(self._tries + 1, 10)
        return limit * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
