"""Speeds from samples of a count."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

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


def medians(samples: Samples, began: float, width: float, windows: int) -> list[float]:
    """Of values, not of a count: what is typical of each window, or of all where it has none."""
    edges = [bisect_right(samples, (began + place * width,)) for place in range(windows + 1)]
    return [
        median([value for _, value in samples[start:end] or samples])
        for start, end in pairwise(edges)
    ]


def evened(
    speeds: Sequence[float], stolen: Sequence[float], efforts: Sequence[float]
) -> list[float]:
    """The speeds as if the machine had stayed what it was in the first window: its host took a
    share of the processors' time, and the same work cost more or less of what it left."""
    return [
        speed / (1 - share) * effort / efforts[0]
        for speed, share, effort in zip(speeds, stolen, efforts, strict=True)
    ]
