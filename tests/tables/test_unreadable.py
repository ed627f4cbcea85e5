"""Values that PostgreSQL stores and Python has no room for: they cost their own row, no other."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from holdfast import Holdfast
from holdfast.errors import ConnectionLost
from holdfast.models import TableDepth
from holdfast.stores.postgres.tables.inspect import inspect
from holdfast.stores.postgres.tables.leases import TableLeases
from holdfast.telemetry.otel import OpenTelemetry
from holdfast.telemetry.prometheus import Metrics
from tests.tables.three_tables import SECOND, SNOOZES, Bench
from tests.worker.workers import Watch, ends, working

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.servers import Database
    from tests.tables.conftest import Link

DEEP = "[" * 3000 + "]" * 3000
VALUES = {
    "a year of five digits": ("timestamptz", "20255-01-01"),
    "a year before the first": ("timestamptz", "4000-01-01 BC"),
    "the end of a day": ("time", "24:00"),
    "a number of many digits": ("jsonb", "[" + "1" * 5000 + "]"),
    "lists in lists": ("json", DEEP),
}
LONG_AGO = datetime(2024, 1, 1, tzinfo=UTC)
FREE = "claimed_at is null and claimed_by is null and claim_token is null"


def too_deep(text: str) -> bool:
    """How deep is too deep is for each Python to say."""
    try:
        json.loads(text)
    except RecursionError:
        return True
    return False


async def poison(bench: Bench, number: int, kind: str, value: str) -> None:
    await bench.witness.execute(
        f"alter table email_snoozes add odd {kind};"
        f"update email_snoozes set odd = '{value}' where id = {number}"
    )


@pytest.mark.parametrize("name", VALUES)
async def test_one_of_ten_rows_is_retired_and_its_neighbours_are_done(
    snoozes: Bench, link: Link, place: Database, name: str
) -> None:
    kind, value = VALUES[name]
    if value is DEEP and not too_deep(value):
        pytest.skip("this Python reads it")
    await snoozes.add(*range(1, 11), due=LONG_AGO)
    await poison(snoozes, 5, kind, value)
    ran: list[int] = []
    async with Holdfast.connect(place.dsn, driver=link.driver) as hf:

        @hf.table("email_snoozes")
        async def remind(row: dict[str, Any]) -> None:
            ran.append(row["id"])

        watch = Watch(hf)
        async with working(hf, dequeue_timeout=timedelta(milliseconds=20), signals=False):
            await watch.until_settled(9)
            # Alive, and with nothing left over from the search.
            await snoozes.add(11, due=LONG_AGO)
            await watch.until_settled(10)
    assert ran == [n for n in range(1, 12) if n != 5]
    rows = await snoozes.witness.fetch(
        f"select id, inactive, attempts, last_error, {FREE} as free from email_snoozes order by id"
    )
    assert all(row["inactive"] and row["free"] and not row["attempts"] for row in rows)
    [error] = [row["last_error"] for row in rows if row["last_error"]]
    assert rows[4]["last_error"] == error
    assert error.startswith("column 'odd' holds a value that Python cannot read (")


async def test_many_rows_are_retired_one_by_one(snoozes: Bench) -> None:
    await snoozes.add(*range(1, 31))
    await poison(snoozes, 1, "time", "24:00")
    await snoozes.witness.execute("update email_snoozes set odd = '24:00' where id % 3 = 0")
    bad = {1, *range(3, 31, 3)}
    assert snoozes.numbers(await snoozes.claim()) == [n for n in range(1, 31) if n not in bad]
    retired = await snoozes.witness.fetch("select id from email_snoozes where inactive")
    assert {row["id"] for row in retired} == bad
    assert await snoozes.claim() == []


async def test_no_more_rows_are_claimed_than_asked_for(snoozes: Bench) -> None:
    await snoozes.add(*range(1, 21))
    await poison(snoozes, 4, "time", "24:00")
    assert snoozes.numbers(await snoozes.claim(7)) == [1, 2, 3, 5, 6, 7, 8]
    claimed = "select count(*) from email_snoozes where claimed_at is not null"
    assert await snoozes.witness.fetchval(claimed) == 7


class Failing:
    """A driver whose connection breaks under one statement of its own choice."""

    def __init__(self, driver: Any, words: str) -> None:
        self._driver = driver
        self.words = words

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def fetch(self, sql: str, args: Sequence[object] = (), **options: Any) -> Any:
        if self.words and self.words in sql:
            self.words = ""
            raise ConnectionLost("gone")
        return await self._driver.fetch(sql, args, **options)


async def test_a_search_that_is_cut_short_leaves_no_row_without_a_lease(snoozes: Bench) -> None:
    await snoozes.add(*range(1, 11))
    await poison(snoozes, 10, "time", "24:00")
    failing: Any = Failing(snoozes.driver, 'select "odd" from')
    leases = TableLeases(failing, SNOOZES.queue, snoozes.clock)
    with pytest.raises(ConnectionLost):
        await leases.claim([], limit=10, worker="w")
    assert snoozes.numbers(await leases.claim([], limit=10, worker="w")) == list(range(1, 10))
    spent = "select count(*) from email_snoozes where attempts > 0"
    assert await snoozes.witness.fetchval(spent) == 0


async def test_infinite_instants_have_a_zone_and_can_be_measured(
    snoozes: Bench, link: Link, place: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await snoozes.add(*range(1, 4))
    await snoozes.witness.execute(
        "alter table email_snoozes add until timestamptz default 'infinity', add day date;"
        "update email_snoozes set remind_at = '-infinity', day = 'infinity'"
    )
    seen: list[dict[str, Any]] = []
    meters = MeterProvider([InMemoryMetricReader()])
    async with Holdfast.connect(place.dsn, driver=link.driver) as hf:
        hf.instrument(OpenTelemetry(meters))
        hf.observe(Metrics(["email_snoozes"], lambda: 0))

        @hf.table("email_snoozes")
        async def remind(row: dict[str, Any]) -> None:
            seen.append(row)

        await ends(hf.run(mode="drain", signals=False))
    meters.shutdown()
    assert "failed on" not in caplog.text
    assert [(row["remind_at"].year, row["until"].year, row["day"].year) for row in seen] == [
        (1, 9999, 9999)
    ] * 3
    assert all(row[name].tzinfo is not None for row in seen for name in ("remind_at", "until"))


async def test_what_has_been_due_since_ever_has_no_age(snoozes: Bench) -> None:
    await snoozes.add(1, 2)
    await snoozes.witness.execute("update email_snoozes set remind_at = '-infinity' where id = 1")
    snoozes.clock.advance(SECOND)
    assert await snoozes.leases.depth() == TableDepth(waiting=2, claimed=0, oldest=SECOND)


@pytest.mark.parametrize("due", ["-infinity", "infinity", "4000-01-01 BC", "20255-01-01"])
async def test_a_row_that_is_due_in_no_year_of_python_can_be_inspected(
    snoozes: Bench, due: str
) -> None:
    await snoozes.add(1, attempts=1)
    await snoozes.witness.execute(f"update email_snoozes set remind_at = '{due}'")
    _, [case] = await inspect(snoozes.driver, SNOOZES.queue, 9)
    assert case.due.tzinfo is not None
    assert case.due.year in (1, 9999)
