"""The line of time of a job: its labels are there, and stand clear of each other."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

pytest.importorskip("starlette", reason="the extra holdfast[web] is not installed")

from holdfast.web.ledger import Row, drawn

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
TEXT = re.compile(r'<text x="([\d.]+)%"[^>]*>([^<]+)<')


def row(begin: float, end: float) -> Row:
    at = START + timedelta(seconds=begin)
    return Row(at, START + timedelta(seconds=end), "retry", "retried", "", "w", since=at)


@pytest.mark.parametrize("shift", range(0, 3600, 97))
def test_the_axis_has_a_time_of_day_that_touches_no_fold(shift: int) -> None:
    rows = [row(shift + begin, shift + end) for begin, end in ((0, 14), (29, 139), (400, 415))]
    _, axis = drawn(rows, START + timedelta(seconds=shift + 2000))
    found = sorted((float(at), text) for at, text in TEXT.findall(axis))
    assert any(":" in text for _, text in found)
    assert any("min" in text for _, text in found)
    places = [at for at, _ in found]
    assert all(later - at > 9 for at, later in pairwise(places)), found
