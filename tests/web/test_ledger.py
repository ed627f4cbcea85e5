"""The line of time of a job: its labels are there, and stand clear of each other."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import resources
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


def test_labels_of_the_axis_leave_room_for_each_other() -> None:
    for seconds in (0.32, 2.03, 3.4, 9.1, 40.2, 100, 700):
        _, axis = drawn([replace(row(28.5, 28.5 + seconds), since=START)], START)
        reached = 0.0
        for left, right in extents(str(axis)):
            assert left >= reached, (seconds, axis)
            reached = right


def extents(axis: str) -> list[tuple[float, float]]:
    """From where to where each label goes, in per cent of the narrowest axis."""
    found = re.findall(r'<text x="([\d.]+)%" y="20" text-anchor="(\w+)">([^<]+)', axis)
    shift = {"start": 0.0, "middle": 0.5, "end": 1.0}
    wide = [(float(x), shift[anchor], 1.6 * len(text)) for x, anchor, text in found]
    return sorted((x - part * width, x + (1 - part) * width) for x, part, width in wide)


def test_every_end_of_a_lease_has_a_colour_of_its_own() -> None:
    css = resources.files("holdfast.web").joinpath("static/holdfast.css").read_text()
    ends = {"exception", "held", "successful", "canceled", "deleted", "retry", "recover", "release"}
    for shape in (*ends, "picked"):
        assert f".lease .run.st-{shape}" in css, shape
