"""Times counted in steps, and what can be read from the counts."""

from __future__ import annotations

from datetime import timedelta
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.histogram import STEPS, Histogram, counted, merged, percentile, place

TIMES = st.timedeltas(timedelta(milliseconds=1), timedelta(days=12))


def histogram(times: list[timedelta]) -> Histogram:
    return reduce(counted, times, ())


@given(st.lists(TIMES, min_size=1), st.floats(0.01, 1.0))
def test_a_percentile_lies_in_the_step_of_the_true_value(
    times: list[timedelta], fraction: float
) -> None:
    ordered = sorted(times)
    rank = next(n for n in range(len(times)) if n + 1 >= fraction * len(times))
    found = percentile(histogram(times), fraction)
    assert found is not None
    # At the edge of a step the value belongs to either.
    assert abs(place(found) - place(ordered[rank])) <= 1


@given(st.lists(TIMES), st.lists(TIMES))
def test_a_sum_of_histograms_counts_the_times_of_all(
    some: list[timedelta], others: list[timedelta]
) -> None:
    assert merged([histogram(some), histogram(others)]) == histogram(some + others)


@pytest.mark.parametrize(
    ("time", "at"),
    [
        (timedelta(seconds=-1), 0),
        (timedelta(0), 0),
        (timedelta(milliseconds=1), 1),
        (timedelta(milliseconds=2), 3),
        (timedelta(days=400), len(STEPS)),
    ],
)
def test_every_time_has_a_place(time: timedelta, at: int) -> None:
    assert place(time) == at
    assert sum(histogram([time])) == 1


def test_without_times_there_is_no_percentile() -> None:
    assert percentile((), 0.5) is None
    assert percentile((0, 0), 0.5) is None
