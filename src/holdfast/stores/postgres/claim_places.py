"""Places for the claims in progress, so that a large fleet does not claim one backlog all at once.

Claims at the same moment look at every row that another one is just locking, and keep rows locked
that others have claimed. Two hundred workers that were woken for one backlog spend their time on
that. So the claims of a large fleet take places for as long as their statements run. There are few
for workers in the middle of a backlog. The others join while hardly any of those places is taken,
and leave the backlog to the workers that have begun it otherwise. Where jobs take long, places are
mostly free and the whole fleet joins.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from holdfast.clock import monotonic

if TYPE_CHECKING:
    from collections.abc import Iterable

logger = logging.getLogger("holdfast.worker")

CLAIM_IN_FLEET = "claim:fleet"
LANES_IN_FLEET = "lanes:fleet"
"""The names of the statements that take a place."""

EPOCH_SECONDS = 5
"""After this time there are new places. A session whose client is frozen may keep one for ever."""

_CROWD = 16
"""In smaller fleets no claim needs a place."""

_JOBS_AT_ONCE = 1500
"""Places are as many as there are claims of this many jobs together, within the next two bounds."""
_LEAST_PLACES = 3
_MOST_PLACES = 32
JOINING_PLACES = 3
"""Places for the claims of workers that are not in the middle of a backlog."""

_DOOR_DIVISOR = 3
"""Others join while fewer than one of this many places is taken."""

_PAUSES_SECONDS = (0.004, 0.016)
"""How long a worker waits after it was refused once and twice: the claims may be short ones."""

_PAUSE_SECONDS_PER_WORKER = 0.01
"""After that it waits for this long for each worker of the fleet, so that all waiting workers
together ask about a hundred times a second."""

_LONGEST_PAUSE_SECONDS = 2.0

_BUSY_PAUSE_SECONDS = 0.008
"""A worker that holds jobs asks this often."""

_PATIENCE_SECONDS = 10.0
"""A worker that was refused for this long claims once without a place. Anybody who may connect can
take the locks that places are, and must not stop a fleet that way."""


class ClaimPlaces:
    """Whether the claims of this worker take places, and when it asks again after a refusal."""

    def __init__(self) -> None:
        self._fleet = self._places = 0
        self._idle = False
        self._heavy = False
        """Whether the last claim was full, so that this worker is in the middle of a backlog."""
        self._refusals = 0
        self._refused_since = 0.0
        self._impatient = False
        """It was refused for too long, so that this claim needs no place."""
        self._again_at = 0.0
        self.refused = False
        """Whether the claim that began last found no place."""

    def begin(self, limit: int, fleet: int, *, idle: bool) -> None:
        """Begin a claim of a worker in a fleet of that many, which holds no jobs if `idle`."""
        self.refused = False
        waited = monotonic() - self._refused_since if self._refusals else 0.0
        self._impatient = waited > _PATIENCE_SECONDS
        if self._impatient and not idle:
            logger.warning(
                "no place to claim was free for %.0f s, so this claim takes none; look for "
                "sessions that keep locks of the type advisory in pg_locks",
                waited,
            )
        self._fleet, self._idle = fleet, idle
        self._places = max(_LEAST_PLACES, min(_MOST_PLACES, _JOBS_AT_ONCE // max(1, limit)))

    def end(self, *, full: bool) -> None:
        """Record whether a claim returned as many jobs as it asked for."""
        if not self.refused:
            self._heavy, self._refusals = full, 0

    @property
    def taken(self) -> bool:
        """Whether the statements of this claim take places."""
        return self._fleet >= _CROWD and not self._impatient

    def ask(self, channel: str, entrypoints: Iterable[str]) -> dict[str, object]:
        """Return what a statement says about the place that it takes.

        Only workers that serve the same entrypoints share places. Those that claim a backlog find
        all jobs that the waiting ones would find.
        """
        return {
            "channel": channel,
            "place_of": " ".join(sorted(entrypoints)),
            "heavy": self._heavy,
            "places": self._places,
            "door": max(1, self._places // _DOOR_DIVISOR),
        }

    def refuse(self) -> None:
        """Record that no place was free."""
        self.refused = True
        if not self._refusals:
            self._refused_since = monotonic()
        self._refusals += 1
        pause = _BUSY_PAUSE_SECONDS
        if self._idle:
            # The others do without it.
            self._heavy = False
        if self._idle and self._refusals <= len(_PAUSES_SECONDS):
            pause = _PAUSES_SECONDS[self._refusals - 1]
        elif self._idle:
            pause = min(_PAUSE_SECONDS_PER_WORKER * self._fleet, _LONGEST_PAUSE_SECONDS)
        pause *= random.uniform(0.5, 1.5)  # noqa: S311 - not a secret
        self._again_at = monotonic() + pause

    @property
    def pause(self) -> float:
        """Seconds until the worker should ask again."""
        return max(0.0, self._again_at - monotonic())
