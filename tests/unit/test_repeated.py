"""A log line that repeats is written once a minute, with a count."""

from __future__ import annotations

import asyncio
import logging

import pytest

from holdfast.repeated import RepeatedLog
from holdfast.worker.backoff import Backoff

logger = logging.getLogger("holdfast.test")


class Seconds:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Seconds:
    return Seconds()


@pytest.fixture
def repeated(clock: Seconds) -> RepeatedLog:
    return RepeatedLog(logger, clock=clock)


def test_the_first_line_is_written_at_once_and_the_others_are_counted(
    repeated: RepeatedLog, clock: Seconds, caplog: pytest.LogCaptureFixture
) -> None:
    assert [repeated.warning("no answer: %s", each) for each in "abc"] == [True, False, False]
    clock.now += 59.9
    assert not repeated.warning("no answer: %s", "d")
    clock.now += 0.1
    assert repeated.warning("no answer: %s", "e")
    assert caplog.messages == ["no answer: a", "no answer: e (and 3 more like it within 60 s)"]


def test_a_line_that_was_not_left_out_has_no_count(
    repeated: RepeatedLog, clock: Seconds, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        repeated.warning("no answer")
        clock.now += 61
    assert caplog.messages == ["no answer"] * 3


def test_messages_are_limited_one_by_one(
    repeated: RepeatedLog, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        repeated.warning("one")
        repeated.error("100 %")
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "one"),
        ("ERROR", "100 %"),
    ]


def test_a_traceback_is_written_once(
    repeated: RepeatedLog, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        try:
            raise ValueError("nonsense")
        except ValueError:
            repeated.error("not understood", exc_info=True)
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is ValueError


async def test_the_count_of_a_burst_is_written_though_nothing_follows(
    clock: Seconds, caplog: pytest.LogCaptureFixture
) -> None:
    repeated = RepeatedLog(logger, interval=0.05, clock=clock)
    for _ in range(4000):
        repeated.warning("nonsense")
    clock.now += 1
    async with asyncio.timeout(60):
        while len(caplog.messages) < 2:  # noqa: ASYNC110 - a timer raises no event
            await asyncio.sleep(0.01)
    assert caplog.messages == ["nonsense", "nonsense (and 3999 more like it within 1 s)"]


def test_an_outage_is_one_line_a_minute(clock: Seconds, caplog: pytest.LogCaptureFixture) -> None:
    backoff = Backoff(clock=clock)
    for _ in range(130):
        clock.now += 1
        backoff.pause("no job can be claimed", OSError("no route"))
    assert [text.partition(" (and")[0] for text in caplog.messages] == [
        "no job can be claimed: no route; retrying"
    ] * 3
    assert "and 59 more like it within 60 s" in caplog.messages[1]


def test_a_database_that_comes_and_goes_is_two_lines_a_minute(
    clock: Seconds, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    backoff = Backoff(clock=clock)
    for _ in range(59):
        clock.now += 1
        backoff.pause("no job can be claimed", OSError("no route"))
        backoff.reset()
    assert len(caplog.messages) == 2
    assert caplog.messages[1] == "database connection restored"
    clock.now += 60
    backoff.pause("no job can be claimed", OSError("no route"))
    backoff.reset()
    assert len(caplog.messages) == 4
