"""Counts of times in fixed steps, two to each doubling. Pure.

A histogram is a tuple of counts. The first counts times below a millisecond, the last of all times
above twelve days. Trailing zeros may be missing, so an empty tuple counts nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Histogram = tuple[int, ...]

_DOUBLINGS = 30
STEPS = tuple(0.001 * 2 ** (half / 2) for half in range(2 * _DOUBLINGS + 1))
"""Seconds: where each step ends and the next one begins. Stored counts depend on them, so they must
never change."""


def place(time: timedelta) -> int:
    """Return the position at which a time is counted."""
    return bisect_right(STEPS, time.total_seconds())


def counted(histogram: Histogram, time: timedelta) -> Histogram:
    """Return the histogram with one time more."""
    at = place(time)
    longer = (*histogram, *[0] * (at + 1 - len(histogram)))
    return (*longer[:at], longer[at] + 1, *longer[at + 1 :])


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """Return the sum of several histograms."""
    return tuple(sum(counts) for counts in zip_longest(*histograms, fillvalue=0))


def percentile(histogram: Histogram, fraction: float) -> timedelta | None:
    """Return the time that this fraction of all stayed below, or None without any time.

    The value lies within a step, so it is at most a fifth away from the true one.
    """
    total = sum(histogram)
    if not total:
        return None
    rank, seen = fraction * total, 0
    for at, count in enumerate(histogram):
        if count and seen + count >= rank:
            return _within(at, max(0.0, rank - seen) / count)
        seen += count
    return _within(len(histogram) - 1, 1.0)


def _within(at: int, part: float) -> timedelta:
    """Return the time at a part of the way through a step."""
    if at == 0:
        return timedelta(seconds=STEPS[0] * part)
    if at == len(STEPS):
        return timedelta(seconds=STEPS[-1])
    return timedelta(seconds=STEPS[at - 1] * (STEPS[at] / STEPS[at - 1]) ** part)
