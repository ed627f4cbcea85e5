"""Speeds from samples of a count."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

Samples = Sequence[tuple[float, float]]
"""Instant and count so far, in order; between two samples the count rises evenly."""


def count_at(samples: Samples, instant: float) -> float:
    place = bisect_right(samples, (instant, float("inf")))
    if place == 0:
        return 0.0
    before, done = samples[place - 1]
    if place == len(samples):
        return float(done)
    after, later = samples[place]
    return done + (later - done) * (instant - before) / (after - before)


def rate_between(workers: Sequence[Samples], began: float, ended: float) -> float:
    """Jobs a second of all workers together."""
    done = sum(count_at(samples, ended) - count_at(samples, began) for samples in workers)
    return done / (ended - began)


def rates(samples: Samples, began: float, width: float, windows: int) -> list[float]:
    """The speeds of windows that follow on each other."""
    return [
        rate_between([samples], began + place * width, began + (place + 1) * width)
        for place in range(windows)
    ]


def evened(speeds: Sequence[float], stolen: Sequence[float]) -> list[float]:
    """The speeds by the processors' time that the machine's host left, of which it took a share."""
    return [speed / (1 - share) for speed, share in zip(speeds, stolen, strict=True)]
