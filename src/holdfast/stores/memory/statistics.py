"""The counted log of the memory store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from holdfast.histogram import counted, merged
from holdfast.models import LogEntry, Statistic, Timing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.lifecycle import Status


def _order(statistic: Statistic) -> tuple[float, str, int, str]:
    newest_first = -statistic.bucket.timestamp()
    return newest_first, statistic.entrypoint, statistic.priority, statistic.status


class Statistics:
    """How many log rows of each kind fell into each minute."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[datetime, str, int, Status], Statistic] = {}
        self._counted_up_to = 0

    def count(self, log: Sequence[LogEntry]) -> int:
        fresh = [entry for entry in log if not self.has_counted(entry)]
        for entry in fresh:
            self._add(entry)
            self._counted_up_to = entry.id
        return len(fresh)

    def with_uncounted(self, log: Sequence[LogEntry]) -> Statistics:
        """A copy that has counted all of the log."""
        copy = Statistics()
        copy._buckets, copy._counted_up_to = dict(self._buckets), self._counted_up_to
        copy.count(log)
        return copy

    def has_counted(self, entry: LogEntry) -> bool:
        return entry.id <= self._counted_up_to

    def newest(self, since: datetime | None, limit: int) -> list[Statistic]:
        recent = [
            statistic
            for statistic in self._buckets.values()
            if since is None or statistic.bucket >= since
        ]
        return sorted(recent, key=_order)[:limit]

    def timings(self, since: datetime) -> list[Timing]:
        recent = [found for found in self._buckets.values() if found.bucket >= since]
        by_name: dict[str, list[Statistic]] = {}
        for found in recent:
            if found.ran:
                by_name.setdefault(found.entrypoint, []).append(found)
        return [
            Timing(
                name,
                waited=merged(found.waited for found in some),
                ran=merged(found.ran for found in some),
            )
            for name, some in sorted(by_name.items())
        ]

    def clear(self, entrypoints: Sequence[str] | None) -> int:
        before = len(self._buckets)
        self._buckets = {
            kind: statistic
            for kind, statistic in self._buckets.items()
            if entrypoints is not None and statistic.entrypoint not in entrypoints
        }
        return before - len(self._buckets)

    def _add(self, entry: LogEntry) -> None:
        bucket = entry.created.astimezone(UTC).replace(second=0, microsecond=0)
        kind = bucket, entry.entrypoint, entry.priority, entry.status
        known = self._buckets.get(kind, Statistic(*kind, count=0, busy=timedelta(0)))
        known = replace(known, count=known.count + 1)
        if entry.claimed_at is not None:
            busy = entry.created - entry.claimed_at
            known = replace(known, busy=known.busy + busy, ran=counted(known.ran, busy))
            if entry.due_at is not None:
                waited = counted(known.waited, entry.claimed_at - entry.due_at)
                known = replace(known, waited=waited)
        self._buckets[kind] = known
