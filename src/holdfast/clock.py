"""The monotonic clock of a worker. Instants come from the store's clock, never from here."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """The clock of a store. None means the database's own clock."""

    def now(self) -> datetime | None: ...


class SystemClock:
    """Production: the database decides."""

    def now(self) -> datetime | None:
        return None


class LocalClock:
    """The wall clock of this process, for a store that has no database."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class ManualClock:
    """A clock that a test moves by hand; both stores obey it."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2030, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self._now

    def advance(self, by: timedelta) -> None:
        self._now += by

    def set(self, instant: datetime) -> None:
        self._now = instant


monotonic = time.monotonic
"""Seconds that never jump: the only local time a lease is judged by."""
