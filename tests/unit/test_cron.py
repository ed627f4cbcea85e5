"""Cron slots: the written rule for moved clocks, against tables and a brute-force oracle."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidInput, ScheduleError
from holdfast.scheduler.cron import Cron

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# Each night as (zone, start, end) in UTC, the start left out; the slots are UTC times of day.
# Lord Howe moves its clock by half an hour: 02:00 to 02:30 in October, 02:00 to 01:30 in April.
MADRID_SPRING = ("Europe/Madrid", "2026-03-29T00:00", "2026-03-29T02:00")
MADRID_AUTUMN = ("Europe/Madrid", "2026-10-24T23:00", "2026-10-25T03:00")
NEW_YORK_SPRING = ("America/New_York", "2026-03-08T06:00", "2026-03-08T08:00")
NEW_YORK_AUTUMN = ("America/New_York", "2026-11-01T04:00", "2026-11-01T08:00")
LORD_HOWE_SPRING = ("Australia/Lord_Howe", "2026-10-03T14:00", "2026-10-03T17:00")
LORD_HOWE_AUTUMN = ("Australia/Lord_Howe", "2026-04-04T13:00", "2026-04-04T17:00")

NIGHTS = [
    # A skipped time of day fires once, right after the gap.
    (MADRID_SPRING, "30 2 * * *", "01:00"),
    (MADRID_SPRING, "*/15 2 * * *", "01:00"),
    (MADRID_SPRING, "30 2,3 * * *", "01:00 01:30"),
    (MADRID_SPRING, "0 2,3 * * *", "01:00"),
    (MADRID_SPRING, "30 2 * * * 15,45", "01:00"),
    (NEW_YORK_SPRING, "30 2 * * *", "07:00"),
    (NEW_YORK_SPRING, "30 1-3 * * *", "06:30 07:00 07:30"),
    (LORD_HOWE_SPRING, "15 2 * * *", "15:30"),
    (LORD_HOWE_SPRING, "0,15,45 2 * * *", "15:30 15:45"),
    # A time of day shown twice fires once, at the first.
    (MADRID_AUTUMN, "30 2 * * *", "00:30"),
    (MADRID_AUTUMN, "0 2,3 * * *", "00:00 02:00"),
    (MADRID_AUTUMN, "*/30 2 * * *", "00:00 00:30"),
    (MADRID_AUTUMN, "30 2 * * * 15,45", "00:30:15 00:30:45"),
    (NEW_YORK_AUTUMN, "30 1 * * *", "05:30"),
    (NEW_YORK_AUTUMN, "0 1,2 * * *", "05:00 07:00"),
    (LORD_HOWE_AUTUMN, "45 1 * * *", "14:45"),
    (LORD_HOWE_AUTUMN, "15,45 1,2 * * *", "14:15 14:45 15:45 16:15"),
    # An hour of * or */n follows elapsed time: both passes, and nothing extra at the gap.
    (MADRID_SPRING, "*/30 * * * *", "00:30 01:00 01:30 02:00"),
    (MADRID_SPRING, "30 * * * *", "00:30 01:30"),
    (MADRID_SPRING, "0 */2 * * *", "02:00"),
    (MADRID_AUTUMN, "30 * * * *", "23:30 00:30 01:30 02:30"),
    (MADRID_AUTUMN, "0 */2 * * *", "00:00 01:00 03:00"),
    (NEW_YORK_SPRING, "@hourly", "07:00 08:00"),
    (NEW_YORK_AUTUMN, "@hourly", "05:00 06:00 07:00 08:00"),
    (LORD_HOWE_SPRING, "*/20 * * * *", "14:10 14:30 14:50 15:10 15:40 16:00 16:20 16:40 17:00"),
    (LORD_HOWE_SPRING, "40 * * * *", "14:10 15:10 15:40 16:40"),
    (LORD_HOWE_AUTUMN, "0 */2 * * *", "15:30"),
    (LORD_HOWE_AUTUMN, "45 * * * *", "13:45 14:45 15:15 16:15"),
]


@pytest.mark.parametrize(("night", "expression", "expected"), NIGHTS)
def test_moved_clock_nights_follow_the_written_rule(
    night: tuple[str, str, str], expression: str, expected: str
) -> None:
    zone, start, end = night
    found = Cron.parse(expression, zone).between(utc(start), utc(end), limit=100)
    assert [f"{slot:%H:%M:%S}".removesuffix(":00") for slot in found.times] == expected.split()


ZONES = [
    "Europe/Madrid",
    "America/New_York",
    "Australia/Lord_Howe",  # half an hour
    "America/Havana",  # at midnight
    "Africa/Casablanca",  # for Ramadan, the other way round
    "Pacific/Chatham",  # offset of 45 minutes
]
PATTERNS = [
    "* * * * *",
    "*/7 * * * *",
    "30 * * * *",
    "15 */2 * * *",
    "0 */24 * * *",
    "0 0 * * *",
    "30 2 * * *",
    "*/10 1-3 * * *",
    "5,35 0,1,2,3,23 * * *",
    "45 1-23/2 * * 0,6",
    "15 0-3 1-14 3,4,10,11 0",
    "20 * * 2-11 7",
]


def numbers(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        first, _, last = f"{low}-{high}".partition("-") if span == "*" else span.partition("-")
        found.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


class Pattern:
    """A second reading of an expression, which shares nothing with the code under test."""

    def __init__(self, expression: str) -> None:
        minute, hour, day, month, weekday, *second = expression.split()
        self.follows_elapsed_time = hour.startswith("*")
        self.both_days = day.startswith("*") or weekday.startswith("*")
        self.seconds = numbers(second[0] if second else "0", 0, 59)
        self.minutes, self.hours = numbers(minute, 0, 59), numbers(hour, 0, 23)
        self.days, self.months = numbers(day, 1, 31), numbers(month, 1, 12)
        self.weekdays = {number % 7 for number in numbers(weekday, 0, 7)}

    def matches(self, local: datetime) -> bool:
        if local.minute not in self.minutes or local.hour not in self.hours:
            return False
        day, weekday = local.day in self.days, local.isoweekday() % 7 in self.weekdays
        return (
            local.second in self.seconds
            and local.month in self.months
            and ((day and weekday) if self.both_days else (day or weekday))
        )


def clock(instant: datetime, zone: ZoneInfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None)


@cache
def transitions(zone: str) -> list[datetime]:
    """The hours from 2024 to 2030 after which the zone's clock no longer runs straight."""
    info, hour = ZoneInfo(zone), timedelta(hours=1)
    days = [utc("2024-01-01") + timedelta(days=n) for n in range(366 * 7)]
    return [
        day + n * hour
        for day in days
        if clock(day + 24 * hour, info) - clock(day, info) != 24 * hour
        for n in range(24)
        if clock(day + (n + 1) * hour, info) - clock(day + n * hour, info) != hour
    ]


def enumerated(pattern: Pattern, minutes: list[tuple[datetime, datetime]]) -> list[datetime]:
    """The rule, literally: watch the clock minute by minute and note when the pattern fires."""
    slots = []
    furthest = minutes[0][1] - MINUTE
    for instant, local in minutes:
        if pattern.follows_elapsed_time:
            due = pattern.matches(local)
        else:
            newly_reached = max(0, (local - furthest) // MINUTE)
            due = any(pattern.matches(local - n * MINUTE) for n in range(newly_reached))
        furthest = max(furthest, local)
        if due:
            slots.append(instant)
    return slots


@pytest.mark.parametrize("zone", ZONES)
def test_every_moved_clock_from_2024_to_2030_agrees_with_a_minute_by_minute_watch(
    zone: str,
) -> None:
    assert len(transitions(zone)) >= 13
    for moved in transitions(zone):
        instants = [moved + n * MINUTE for n in range(-13 * 60, 13 * 60)]
        minutes = [(instant, clock(instant, ZoneInfo(zone))) for instant in instants]
        for expression in PATTERNS:
            expected = enumerated(Pattern(expression), minutes)
            found = Cron.parse(expression, zone).between(
                instants[0] - SECOND, instants[-1], limit=len(instants)
            )
            assert found == (expected, False), (expression, moved)


@pytest.mark.parametrize("zone", ZONES)
def test_any_instant_of_a_moved_clock_night_is_a_valid_place_to_start(zone: str) -> None:
    for moved in transitions(zone)[:4]:
        for expression in PATTERNS:
            cron = Cron.parse(expression, zone)
            start = moved - timedelta(hours=3)
            slots = cron.between(start, moved + timedelta(days=400), limit=600).times
            for n in range(0, 6 * 60, 5):
                instant = start + n * MINUTE + timedelta(microseconds=n % 3)
                expected = next(slot for slot in slots if slot > instant)
                assert cron.after(instant) == expected, (expression, instant)


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    step = st.integers(1, high).map(lambda n: f"*/{n}")
    items = st.lists(number, min_size=1, max_size=3).map(lambda found: ",".join(map(str, found)))
    return st.one_of(st.just("*"), step, span, items)


EXPRESSIONS = st.tuples(
    fields(0, 59),
    fields(0, 23),
    st.one_of(st.just("*"), fields(1, 28)),
    st.one_of(st.just("*"), fields(1, 12)),
    st.one_of(st.just("*"), fields(0, 7)),
    st.one_of(st.just("0"), fields(0, 59)),
).map(" ".join)


@settings(deadline=None, max_examples=300)
@given(
    expression=EXPRESSIONS,
    zone=st.sampled_from(ZONES),
    near=st.integers(0, 12),
    away=st.timedeltas(timedelta(hours=-30), timedelta(hours=30)),
)
def test_slots_strictly_increase_and_lie_on_the_grid(
    expression: str, zone: str, near: int, away: timedelta
) -> None:
    cron, pattern, info = Cron.parse(expression, zone), Pattern(expression), ZoneInfo(zone)
    instants = [transitions(zone)[near] + away]
    for _ in range(5):
        instants.append(cron.after(instants[-1]))
    assert all(earlier < later for earlier, later in pairwise(instants))
    for slot in instants[1:]:
        after_a_gap = clock(slot, info) - clock(slot - SECOND, info) > SECOND
        assert pattern.matches(clock(slot, info)) or (
            after_a_gap and not pattern.follows_elapsed_time
        )
        assert slot.tzinfo is UTC


@pytest.mark.parametrize(
    ("expression", "first"),
    [
        ("@yearly", "2027-01-01T00:00"),
        ("@annually", "2027-01-01T00:00"),
        ("@monthly", "2026-08-01T00:00"),
        ("@weekly", "2026-07-19T00:00"),
        ("@Daily", "2026-07-16T00:00"),
        ("@midnight", "2026-07-16T00:00"),
        ("@hourly", "2026-07-15T11:00"),
        ("*/5 * * * *", "2026-07-15T10:35"),
        ("  30  10 * *\t* ", "2026-07-16T10:30"),
        ("* * * * * */20", "2026-07-15T10:30:20"),
        ("0 12 * * * 7", "2026-07-15T12:00:07"),
        ("0 0 1 * mon", "2026-07-20T00:00"),
        ("0 0 L feb *", "2027-02-28T00:00"),
        ("0 0 29 2 *", "2028-02-29T00:00"),
        ("0 0 * * 5#3", "2026-07-17T00:00"),
    ],
)
def test_the_first_slot_after_a_wednesday_morning(expression: str, first: str) -> None:
    assert Cron.parse(expression).after(utc("2026-07-15T10:30")) == utc(first)


def test_a_day_is_read_in_the_schedule_s_own_time_zone() -> None:
    cron = Cron.parse("0 9 * * MON", "Asia/Tokyo")
    assert cron.after(utc("2026-07-15T00:00")) == utc("2026-07-20T00:00")


def test_between_leaves_out_its_start_includes_its_end_and_tells_of_more() -> None:
    cron = Cron.parse("@hourly")
    start, end = utc("2026-07-15T10:00"), utc("2026-07-15T13:00")
    hours = [utc(f"2026-07-15T{hour}:00") for hour in (11, 12, 13)]
    assert cron.between(start, end, limit=3) == (hours, False)
    assert cron.between(start, end, limit=2) == (hours[:2], True)
    assert cron.between(end, start, limit=2) == ([], False)


ERRORS = [
    ("60 * * * *", ["minute '60'", "0-59"]),
    ("* 24 * * *", ["hour '24'", "0-23"]),
    ("* * 0 * *", ["day of month '0'", "1-31"]),
    ("* * * 13 *", ["month '13'", "1-12 or JAN-DEC"]),
    ("* * * * Fry", ["day of week 'Fry'", "0-7", "SUN-SAT"]),
    ("* * * * * 61", ["second '61'", "0-59"]),
    ("30-10 * * * *", ["minute '30-10'", "low to high"]),
    ("1,,2 * * * *", ["minute '1,,2'"]),
    ("*/0 * * * *", ["minute '*/0'"]),
    ("*/90 * * * *", ["minute '*/90'", "1-60"]),
    (f"{'9' * 5000} * * * *", ["minute '999"]),
    ("* * * *", ["4 fields", "5 (minute hour", "6 with the seconds last"]),
    ("* * * * * * *", ["7 fields"]),
    ("", ["0 fields"]),
    ("@reboot", ["'@reboot'", "@hourly"]),
    ("0 0 30 2 *", ["'0 0 30 2 *' never fires", "day of month '30'", "month '2'"]),
    ("0 0 */31 * 1#2", ["never fires", "day of week '1#2'"]),
]


@pytest.mark.parametrize(("expression", "parts"), ERRORS)
def test_a_bad_expression_is_refused_with_its_field_value_and_range(
    expression: str, parts: list[str]
) -> None:
    with pytest.raises(ScheduleError) as caught:
        Cron.parse(expression)
    assert [part for part in parts if part not in str(caught.value)] == []


@pytest.mark.parametrize("zone", ["Europe/Atlantis", "Europe", "", "../UTC", "\0", "x" * 5000])
def test_an_unknown_time_zone_is_refused_with_an_example(zone: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        Cron.parse("@daily", zone)
    assert repr(zone) in str(caught.value)
    assert "'Europe/Madrid'" in str(caught.value)


def test_an_instant_without_a_zone_and_a_limit_of_nothing_are_refused() -> None:
    cron, aware = Cron.parse("@daily"), utc("2026-07-15T00:00")
    with pytest.raises(InvalidInput, match="2026-07-15T00:00:00 has no time zone"):
        cron.after(aware.replace(tzinfo=None))
    with pytest.raises(InvalidInput, match="has no time zone"):
        cron.between(aware, aware.replace(tzinfo=None), limit=1)
    with pytest.raises(InvalidInput, match="at least 1, got 0"):
        cron.between(aware, aware, limit=0)


def test_the_end_of_the_calendar_is_an_error_that_names_the_expression() -> None:
    with pytest.raises(ScheduleError, match="'@yearly' has no slot after 9999-06-01"):
        Cron.parse("@yearly").after(utc("9999-06-01"))
