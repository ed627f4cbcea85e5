"""A clock that a test moves forward."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class TravelClock:
    """The usual clock until the test travels. None means that the database's own clock is asked."""

    def __init__(self) -> None:
        self._ahead = timedelta(0)

    def now(self) -> datetime | None:
        return datetime.now(UTC) + self._ahead if self._ahead else None

    def travel(self, by: timedelta) -> None:
        self._ahead += by
