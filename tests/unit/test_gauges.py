"""How often a worker looks at the queue for its gauges."""

from __future__ import annotations

from holdfast.telemetry.gauges import INTERVAL, pause


def test_what_is_quickly_counted_is_counted_at_fixed_times() -> None:
    assert pause(0.001) == INTERVAL
    assert pause(0.001, least=10.0) == 10.0


def test_a_count_that_takes_long_is_made_less_often() -> None:
    assert pause(1.0) == 100.0


def test_gauges_are_never_much_older_than_five_minutes() -> None:
    assert pause(30.0) == 300.0
