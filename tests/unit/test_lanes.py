"""How far below its floors a worker looks, and how often, by what the looks cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from holdfast.models import Want
from holdfast.stores.postgres import lanes
from holdfast.stores.postgres.lanes import Lanes

if TYPE_CHECKING:
    from collections.abc import Callable

MAIL = Want("mail", lease=timedelta(minutes=1))
NOW = datetime(2030, 1, 1, tzinfo=UTC)
BOTTOM = datetime(1, 1, 1, tzinfo=UTC)
DEAR = 0.02
"""Seconds from which on a slice is too long."""


class Time:
    """Passes when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(lanes, "monotonic", time)
    return time


def claimed_up_to_now(way: float = 0.001) -> Lanes:
    """Of a worker whose server is so many seconds away."""
    found = Lanes()
    found.forget([MAIL])
    found.question()
    found.answer([("mail", 0, True, False, None)], way)
    [(lane, _)] = found.deal(0, 1)
    lane.floor = NOW
    return found


def look(
    found: Lanes, time: Time, cost: Callable[[datetime, datetime], float]
) -> tuple[datetime | None, float]:
    """One look when it is time for it: how far down it went, and the seconds it took."""
    time.now += 2.0
    question = found.question()
    [floor], [ceiling] = question["slice_floors"], question["slice_ceilings"]
    seconds = cost(floor, ceiling)
    time.now += seconds
    found.answer([("mail", 0, False, False, None)], seconds)
    return floor, seconds


@pytest.mark.parametrize("way", [0.0005, 0.015, 0.03, 0.3])
def test_however_far_the_server_is_all_is_looked_at(time: Time, way: float) -> None:
    found = claimed_up_to_now(way)
    floors = {look(found, time, lambda _floor, _ceiling: way)[0] for _ in range(10)}
    assert floors == {BOTTOM}
    assert not found.unfinished


def test_a_server_that_becomes_slower_is_not_taken_for_many_dead_rows(time: Time) -> None:
    found = claimed_up_to_now()
    look(found, time, lambda _floor, _ceiling: 0.001)
    floors = [look(found, time, lambda _floor, _ceiling: 0.05)[0] for _ in range(40)]
    assert BOTTOM in floors[10:]


def dead_rows(floor: datetime, ceiling: datetime) -> float:
    """Ten minutes of them, of which a second takes 12 ms to walk."""
    there = min(ceiling, NOW) - max(floor, NOW - timedelta(minutes=10))
    return 0.001 + 0.012 * max(there.total_seconds(), 0.0)


def test_among_dead_rows_slices_grow_no_longer_than_the_time_allows(time: Time) -> None:
    found = claimed_up_to_now()
    # The first is as long as everything, and finds out.
    _, first = look(found, time, dead_rows)
    taken = [look(found, time, dead_rows) for _ in range(2000)]
    assert first > 5
    assert max(seconds for _, seconds in taken) < 2 * DEAR
    assert BOTTOM in [floor for floor, _ in taken]


def test_a_look_that_came_too_early_to_look_down_is_not_the_last(time: Time) -> None:
    found = claimed_up_to_now()
    look(found, time, dead_rows)
    assert not found.may_look_down()
    question = found.question()
    found.answer([("mail", 0, False, False, None)], 0.001)
    assert question["slice_floors"] == [None]
    assert found.unfinished
