"""Pauses in PostgreSQL: the operator's statements, and a worker's view of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError
from holdfast.models import Act, Pause
from holdfast.pauses import VIEW_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime, timedelta

    from holdfast.settings import Names
    from holdfast.stores.postgres.drivers.base import Row
    from holdfast.stores.postgres.runner import Runner

_ABSENT_SECONDS = 60.0
"""How long a worker of table queues relies on the table of pauses not being there."""

_ABSENT = ("42P01", "3F000", "42501")
"""No such table, no such schema, no privilege: nothing can be paused, no act be listed."""


class PostgresPauses:
    """Pause, resume and list."""

    def __init__(self, runner: Runner, names: Names) -> None:
        self._runner = runner
        self._channel = names.channel

    async def pause(
        self,
        name: str,
        *,
        until: datetime | None,
        lasts: timedelta | None,
        actor: str | None,
        reason: str,
    ) -> Pause:
        [row] = await self._runner.run(
            "pause", name=name, until=until, lasts=lasts, actor=actor, reason=reason
        )
        return Pause(*row)

    async def resume(self, name: str, *, actor: str | None, reason: str | None) -> bool:
        return bool(
            await self._runner.run(
                "resume", name=name, actor=actor, reason=reason, channel=self._channel
            )
        )

    async def all(self) -> list[Pause]:
        return [Pause(*row[:5]) for row in await self._runner.run("pauses")]

    async def acts(self, limit: int) -> list[Act]:
        return [Act(*row) for row in await self._runner.run("acts", limit=limit)]

    async def record_act(self, act: str, subject: str, *, actor: str, reason: str | None) -> None:
        values = {"act": act, "subject": subject, "actor": actor, "reason": reason}
        try:
            await self._runner.run("record_act", **values)
        except DatabaseError as error:
            # Breakers can be installed without the other tables, and a worker may open one too.
            if error.sqlstate not in _ABSENT:
                raise


class PauseView:
    """The pauses that one worker knows of, and since when.

    A claim needs a view that is younger than VIEW_SECONDS. A view that cannot be renewed raises, so
    a worker without one claims nothing.
    """

    def __init__(self, runner: Runner, *, optional: bool = False) -> None:
        self._runner = runner
        self._optional = optional
        self.paused: dict[str, float] = {}
        """Until when (monotonic), by entrypoint; an empty name means everything."""
        self.seen_at = -math.inf

    def covers(self, entrypoint: str) -> bool:
        """Whether jobs of this entrypoint are paused, by name or with everything."""
        now = monotonic()
        return any(self.paused.get(name, -math.inf) > now for name in ("", entrypoint))

    def scanned(self, asked_at: float, found: Iterable[tuple[str, bool]]) -> None:
        """Take over the pauses of each entrypoint that a scan returned."""
        self.seen_at = asked_at
        for name, paused in found:
            self.paused.pop(name, None)
            if paused:
                self.paused[name] = math.inf
        # A scan says of each entrypoint whether everything is paused.
        self.paused.pop("", None)

    def expire(self) -> None:
        """Ask again before the next claim."""
        self.seen_at = -math.inf

    async def renew(self) -> None:
        """Read the pauses unless the view is young enough."""
        asked_at = monotonic()
        if asked_at - self.seen_at < VIEW_SECONDS:
            return
        try:
            found = await self._runner.run("pauses")
        except DatabaseError as error:
            if not self._optional or error.sqlstate not in _ABSENT:
                raise
            self.paused.clear()
            self.seen_at = asked_at + _ABSENT_SECONDS
            return
        self._take(found, asked_at)

    def _take(self, found: Iterable[Row], asked_at: float) -> None:
        self.paused = {
            row[0]: math.inf if row[5] is None else asked_at + float(row[5]) for row in found
        }
        self.seen_at = asked_at
