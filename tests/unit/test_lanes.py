"""How far below its floors a worker looks, and how often, by what the looks cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from holdfast.models import Capacity, ClaimRule
from holdfast.stores.postgres import lanes
from holdfast.stores.postgres.lanes import Lanes

if TYPE_CHECKING:
    from collections.abc import Callable

MAIL = ClaimRule("mail", lease=timedelta(minutes=1))
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


def answer(
    found: Lanes, *, more: bool = False, seconds: float = 0.001, start: datetime | None = None
) -> None:
    """Of a look that finds one lane, and nothing below its floor."""
    took = timedelta(seconds=seconds)
    found.answer([("mail", 0, more, False, None, start, took)])


def claimed_up_to_now() -> Lanes:
    found = Lanes()
    found.reset([MAIL])
    found.question()
    answer(found, more=True)
    [(lane, _)] = found.deal(0, 1)
    lane.floor, lane.floor_id = NOW, 7
    return found


def look(
    found: Lanes, time: Time, cost: Callable[[datetime, datetime], float]
) -> tuple[datetime, datetime, float]:
    """One look when it is time for it: from where it looked how far down, and for how long."""
    time.now += 2.0
    question = found.question()
    [floor], [ceiling] = question["slice_floors"], question["slice_ceilings"]
    seconds = cost(floor, ceiling)
    answer(found, seconds=seconds)
    return ceiling, floor, seconds


def dead_rows(floor: datetime, ceiling: datetime) -> float:
    """Ten minutes of them, of which a second takes 12 ms to walk."""
    there = min(ceiling, NOW) - max(floor, NOW - timedelta(minutes=10))
    return 0.001 + 0.012 * max(there.total_seconds(), 0.0)


def test_what_is_cheap_is_looked_at_all_at_once(time: Time) -> None:
    found = claimed_up_to_now()
    looks = [look(found, time, lambda _floor, _ceiling: 0.001) for _ in range(10)]
    assert {(ceiling, floor) for ceiling, floor, _ in looks} == {(NOW, BOTTOM)}
    assert not found.unfinished


def test_among_dead_rows_slices_grow_no_longer_than_the_time_allows(time: Time) -> None:
    found = claimed_up_to_now()
    # The first is as long as everything, and finds out.
    _, _, first = look(found, time, dead_rows)
    looks = [look(found, time, dead_rows) for _ in range(2000)]
    assert first > 5
    assert max(seconds for _, _, seconds in looks) < 2 * DEAR
    assert BOTTOM in [floor for _, floor, _ in looks]


def test_during_a_pass_every_other_look_is_at_the_floor(time: Time) -> None:
    found = claimed_up_to_now()
    look(found, time, dead_rows)
    ceilings = [look(found, time, dead_rows)[0] for _ in range(100)]
    assert found.unfinished
    assert ceilings[0::2] == [NOW] * 50
    deep = ceilings[1::2]
    assert deep == sorted(set(deep), reverse=True)


def test_a_pass_begins_with_slices_as_short_as_they_are_at_the_floor(time: Time) -> None:
    found = claimed_up_to_now()
    slices = [look(found, time, dead_rows) for _ in range(2000)]
    ends = [place for place, (_, floor, _) in enumerate(slices) if floor == BOTTOM][1:]
    assert ends
    for end in ends:
        for ceiling, floor, _ in slices[end + 1 : end + 4]:
            assert ceiling - floor < timedelta(seconds=5)


def test_a_look_that_came_too_early_to_look_down_is_not_the_last(time: Time) -> None:
    found = claimed_up_to_now()
    look(found, time, dead_rows)
    assert not found.may_rescan()
    question = found.question()
    answer(found)
    assert question["slice_floors"] == [None]
    assert found.unfinished


def test_where_nothing_was_claimed_nothing_below_is_missed_by_looking_early(time: Time) -> None:
    found = claimed_up_to_now()
    look(found, time, dead_rows)
    found.reset([MAIL])
    found.question()
    answer(found, more=True)
    assert not found.may_rescan()
    assert not found.unfinished


def test_of_jobs_with_the_time_of_the_floor_those_above_it_are_not_below_it(time: Time) -> None:
    found = claimed_up_to_now()
    look(found, time, dead_rows)
    time.now += 2.0
    assert found.question()["slice_ceiling_ids"] == [7]
    answer(found)
    further_down = found.question()
    assert further_down["slice_ceilings"] != [NOW]
    assert further_down["slice_ceiling_ids"][0] > 2**62


def test_a_new_lane_begins_where_there_is_something_to_claim(time: Time) -> None:
    found = Lanes()
    found.reset([MAIL])
    found.question()
    answer(found, more=True, start=NOW)
    [(lane, _)] = found.deal(0, 10)
    assert (lane.floor, lane.floor_id) == (NOW, 0)


def expected(found: Lanes, *seconds: float, entrypoint: str = "mail", priority: int = 0) -> None:
    """Jobs that were due so many seconds before the floor."""
    found.expect([(entrypoint, priority, NOW - timedelta(seconds=some)) for some in seconds])


def test_jobs_known_to_be_below_a_floor_are_claimed_first(time: Time) -> None:
    found = claimed_up_to_now()
    expected(found, 3600.0, 3600.2, 3599.9)
    [(part, share)] = found.deal(0, 10)
    assert share == 10
    assert (part.floor, part.floor_id) == (NOW - timedelta(seconds=3600.2), 0)
    assert part.ceiling == NOW - timedelta(seconds=3599.9)
    part.took(None, 3, 10)
    [(rest, _)] = found.deal(0, 7)
    assert rest.floor == NOW


def test_jobs_known_to_be_below_are_not_forgotten_by_a_look(time: Time) -> None:
    found = claimed_up_to_now()
    expected(found, 3600.0)
    look(found, time, dead_rows)
    [(part, _)] = found.deal(0, 10)
    assert part.ceiling == NOW - timedelta(hours=1)
    part.dry = True
    look(found, time, dead_rows)
    assert found.priorities() == []


def test_of_parts_of_a_lane_one_is_claimed_at_a_time_the_oldest_first(time: Time) -> None:
    found = claimed_up_to_now()
    expected(found, 10.0, 20.0, 30.0)
    expected(found, 10.0, priority=5)
    expected(found, 10.0, entrypoint="not mine")
    assert found.priorities() == [5, 0]
    claimed = []
    while (shares := found.deal(0, 10)) and shares[0][0].ceiling < NOW:
        [(part, _)] = shares
        part.took(None, 1, 10)
        claimed.append((NOW - part.ceiling).total_seconds())
    assert claimed == [30.0, 20.0, 10.0]


def test_what_is_scattered_widely_is_left_to_the_looks(time: Time) -> None:
    found = claimed_up_to_now()
    expected(found, *(10.0 * n for n in range(1, 1000)))
    parts = 0
    while (shares := found.deal(0, 10)) and shares[0][0].ceiling < NOW:
        shares[0][0].dry = True
        parts += 1
    assert 0 < parts <= 20


SMS = ClaimRule("sms", lease=timedelta(minutes=1))


def two_lanes(first: ClaimRule, second: ClaimRule) -> Lanes:
    """Both have more than can be claimed."""
    found = Lanes()
    found.reset([first, second])
    found.question()
    took = timedelta(milliseconds=1)
    found.answer([(rule.entrypoint, 0, True, False, None, NOW, took) for rule in (first, second)])
    return found


def dealt(found: Lanes, room: int) -> dict[str, int]:
    return {lane.rule.entrypoint: share for lane, share in found.deal(0, room)}


def test_what_lies_below_one_entrypoints_floor_takes_nothing_from_the_others(time: Time) -> None:
    found = two_lanes(MAIL, SMS)
    expected(found, 3600.0)
    shares = found.deal(0, 10)
    assert {lane.rule.entrypoint: share for lane, share in shares} == {"mail": 5, "sms": 5}
    [part] = [lane for lane, _ in shares if lane.rule is MAIL]
    assert part.ceiling == NOW - timedelta(hours=1)


def test_a_lane_gets_no_more_than_there_is_room_for_and_the_others_share_the_rest(
    time: Time,
) -> None:
    room = Capacity(2)
    found = two_lanes(ClaimRule("mail", MAIL.lease, capacity=room), SMS)
    assert dealt(found, 3) in ({"mail": 1, "sms": 2}, {"mail": 2, "sms": 1})
    shares = found.deal(0, 10)
    assert {lane.rule.entrypoint: share for lane, share in shares} == {"mail": 2, "sms": 8}
    for lane, share in shares:
        lane.took(None, share, share)
    assert room.left == 0
    assert dealt(found, 10) == {"sms": 10}
    room.left = 1
    assert dealt(found, 10) == {"mail": 1, "sms": 9}


def test_with_room_for_one_job_each_entrypoint_has_its_turn(time: Time) -> None:
    found = two_lanes(ClaimRule("mail", MAIL.lease, capacity=Capacity(5)), SMS)
    assert {name for _ in range(2) for name in dealt(found, 1)} == {"mail", "sms"}


def test_a_lane_without_room_does_not_keep_the_others_closed(time: Time) -> None:
    room = Capacity(0)
    found = two_lanes(ClaimRule("mail", MAIL.lease, capacity=room), SMS)
    [(sms, _)] = found.deal(0, 10)
    sms.took(None, 0, 10)
    assert found.priorities() == []
    found.reopen()
    assert dealt(found, 10) == {"sms": 10}


def test_no_look_is_put_off_for_what_there_is_no_room_for(time: Time) -> None:
    room = Capacity(1)
    found = Lanes()
    found.reset([ClaimRule("mail", MAIL.lease, capacity=room)])
    found.question()
    answer(found, more=True)
    [(lane, _)] = found.deal(0, 1)
    lane.floor, lane.floor_id = NOW, 7
    look(found, time, dead_rows)
    look(found, time, dead_rows)
    assert found.unfinished
    room.left = 0
    assert not found.unfinished


def test_the_same_entrypoints_of_another_run_are_not_known(time: Time) -> None:
    """The room of the last run has no owner any more."""
    first, second = (ClaimRule("mail", MAIL.lease, capacity=Capacity(1)) for _ in range(2))
    found = Lanes()
    found.reset([first])
    assert found.knows([first])
    assert not found.knows([second])
