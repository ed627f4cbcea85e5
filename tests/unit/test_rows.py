"""What a claim returns is read to the microsecond."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.postgres.rows import Instants

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@given(st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))
def test_an_instant_is_exact(instant: datetime) -> None:
    seconds = (instant - EPOCH) // MICROSECOND / 1_000_000
    assert Instants()[seconds] == instant


def test_the_same_instant_is_the_same_object() -> None:
    instants = Instants()
    assert instants[1.5] is instants[1.5]
    assert instants[None] is None
