"""Lets only some workers of a fleet run a suspect at a time, also when all of them ask at once."""

from __future__ import annotations

import logging
import random
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError, PrivilegeMissing, SchemaMissing

if TYPE_CHECKING:
    from holdfast.ports import Upkeep

logger = logging.getLogger("holdfast.worker")

_LONGEST = timedelta(minutes=3)


class SuspectTurn:
    """One of the fleet's turns to run a suspect: a row of the database, with an expiry.

    Without it, workers that start together would all see a suspect and none that runs. Each would
    claim one, and nothing else until it has ended.
    """

    def __init__(self, upkeep: Upkeep | None, worker: str, lease: timedelta) -> None:
        self._upkeep = upkeep
        self._worker = worker
        # It expires no sooner than the lease of a suspect whose worker has died.
        self._lasts = min(2 * lease, _LONGEST)
        self._turn: tuple[str, UUID] | None = None

    @property
    def seconds(self) -> float:
        """How often it has to be kept."""
        return self._lasts.total_seconds() / 3

    async def take(self, turns: int) -> bool:
        """Take one of the turns of the fleet. Return False if another worker has it."""
        self._turn = (f"suspect {random.randrange(turns)}", uuid4())  # noqa: S311
        if not await self.keep():
            self._turn = None
            return False
        return True

    async def keep(self) -> bool:
        """Move the expiry of the turn ahead. Return whether this worker has it."""
        if self._upkeep is None or self._turn is None:
            return True
        duty, token = self._turn
        try:
            held = await self._upkeep.hold(
                duty, self._worker, token, lasts=self._lasts, sent=monotonic()
            )
        except PrivilegeMissing:
            # The log says so by the upkeep. A worker without turns is better than none.
            return True
        except (DatabaseError, SchemaMissing):
            return False
        return held.held

    async def release(self) -> None:
        """Let another worker have it."""
        turn, self._turn = self._turn, None
        if self._upkeep is None or turn is None:
            return
        with suppress(DatabaseError, SchemaMissing):
            await self._upkeep.release(*turn)
