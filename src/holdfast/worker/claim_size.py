"""How many jobs one claim may ask for, so that its reply arrives in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.settings import MAX_PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.models import Job

MOST_BYTES = 16 * 1024 * 1024
"""A claim asks for as many jobs as probably carry this many bytes of payload."""

_LARGEST_FEW = MOST_BYTES // MAX_PAYLOAD
"""As many jobs as fit into the bound whatever their payloads are."""


class ClaimSize:
    """Bounds claims by the payloads seen, shrinks them after a time-out, and lets them grow."""

    def __init__(self) -> None:
        self._payload = 0.0
        """Bytes of the payloads seen lately, as a mean that rises at once and falls slowly."""
        self._limit: int | None = None
        """Jobs; None means that no claim has timed out yet."""
        self._quick = 0.0
        """Seconds in which a reply must arrive before twice as much is asked for."""

    def bound(self, jobs: int) -> int:
        """Return how many of `jobs` the next claim may ask for."""
        if self._limit is not None:
            jobs = min(jobs, self._limit)
        if self._payload * jobs > MOST_BYTES:
            jobs = max(1, int(MOST_BYTES / self._payload))
        return jobs

    def answered(self, jobs: Sequence[Job], seconds: float) -> None:
        """Learn from a claim that returned these jobs in that time."""
        if not jobs:
            return
        mean = sum([len(job.payload) for job in jobs if job.payload]) / len(jobs)
        self._payload = max(mean, self._payload / 2)
        if self._limit is not None and len(jobs) >= self._limit and seconds < self._quick:
            self._limit *= 2

    def timed_out(self, asked: int, seconds: float) -> None:
        """Ask for half next time, and at first for so few that no payload is too large."""
        self._limit = max(1, min(asked // 2, _LARGEST_FEW))
        self._quick = seconds / 4
