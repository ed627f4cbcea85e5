"""Worker processes that die on the article's table: no row is retired for its neighbour's death."""

from __future__ import annotations

import asyncio
import signal
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import TableQueue
from holdfast.clock import ManualClock
from holdfast.stores.postgres.drivers import connect
from holdfast.stores.postgres.tables.leases import TableLeases
from holdfast.stores.postgres.tables.render import DEATH_ERROR
from tests.cli.running import Bench, until
from tests.tables import article
from tests.tables.test_processes import QUICK, REMINDERS, count, sql

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers import Database

KILLER = """
import os, signal
from datetime import timedelta
from holdfast import Holdfast, TableQueue
from jobs import note

hf = Holdfast.connect(os.environ["HOLDFAST_DSN"])

@hf.table(TableQueue("email_snoozes", lease=timedelta(seconds=3)))
async def remind(row):
    note("began", row["id"], os.getpid())
    if row["subject"] == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
"""

Row = tuple[int, int, str | None]
"""Attempts, max_attempts, last_error."""

FLEETS: dict[str, list[Row]] = {
    "one attempt left": [(4, 5, None)] * 50,
    "only one attempt": [(0, 1, None)] * 50,
    "every number of attempts": [
        (attempts, cap, error)
        for cap in range(1, 6)
        for attempts in range(cap)
        for error in (None, "ValueError: no such mailbox", "stale claim recovered")
    ],
}


@pytest.fixture
def bench(tmp_path: Path, pg18: Database) -> Iterator[Bench]:
    """A folder with the programs, and a database that has the article's table and no other."""
    made = Bench(tmp_path, pg18.dsn)
    (tmp_path / "reminders.py").write_text(REMINDERS)
    (tmp_path / "killer.py").write_text(KILLER)
    sql(made, lambda connection: connection.execute(article.statement("table")))
    try:
        yield made
    finally:
        made.close()


def add(bench: Bench, rows: list[Row], deadly: tuple[int, ...] = ()) -> None:
    """Rows that are due. A row with an error has failed before: it was due again afterwards."""
    statement = (
        "insert into email_snoozes (user_email, message_id, subject, remind_at, attempts,"
        " max_attempts, last_error, last_error_at)"
        " values ('ann@example.org', $1::text, $2, now(), $3, $4, $5,"
        " case when $5::text is not null then now() - interval '1 minute' end)"
    )
    values = [
        (str(number), "deadly" if number in deadly else None, *row)
        for number, row in enumerate(rows, start=1)
    ]
    sql(bench, lambda connection: connection.executemany(statement, values))


def read(bench: Bench, columns: str, condition: str = "true") -> list[tuple[Any, ...]]:
    statement = f"select {columns} from email_snoozes where {condition} order by id"
    return [tuple(row) for row in sql(bench, lambda connection: connection.fetch(statement))]


@pytest.mark.parametrize("rows", FLEETS.values(), ids=FLEETS)
def test_the_death_of_a_worker_retires_none_of_its_rows(bench: Bench, rows: list[Row]) -> None:
    add(bench, rows)
    before = read(bench, "id, attempts, max_attempts")
    first = bench.start("reminders:hf", "--concurrency", "60", *QUICK)
    bench.noted("began", len(rows))
    assert count(bench, "claimed_at is not null") == len(rows)
    first.send(signal.SIGKILL)
    first.ended()

    survivor = bench.start("reminders:hf", *QUICK)
    until(lambda: count(bench, "last_error_at > remind_at") == len(rows), "all are recovered")
    assert count(bench, "inactive") == 0
    assert read(bench, "id, attempts, max_attempts") == before
    bench.go()
    until(lambda: count(bench, "inactive") == len(rows), "all rows are done")
    survivor.send(signal.SIGTERM)

    assert survivor.ended() == 0, survivor.log
    finished = {int(number) for _, number, _ in bench.journal("finished")}
    assert finished == set(range(1, len(rows) + 1)), "the survivor runs every row"
    assert read(bench, "id, attempts, max_attempts") == before
    told = [error or "stale claim recovered" for _, _, error in rows]
    assert [error for (error,) in read(bench, "last_error")] == told


def test_a_row_that_kills_its_worker_each_time_ends_and_its_neighbours_are_done(
    bench: Bench,
) -> None:
    rows = FLEETS["every number of attempts"]
    deadly = 23
    add(bench, rows, (deadly,))
    before = read(bench, "id, attempts")
    deaths = 0
    while deaths < 20 and bench.run("killer:hf", "--mode", "drain", *QUICK)[0]:
        deaths += 1
        recover_later(bench)
    # Once in the crowd, then in groups that halve, then alone: 2 + log2 of the claimed rows.
    assert 2 <= deaths <= 2 + 6
    assert read(bench, "id, attempts") == before
    assert count(bench, "inactive and claimed_at is null") == len(rows)
    assert read(bench, "id", f"last_error like '%{DEATH_ERROR}%'") == [(deadly,)]
    done = {int(number) for _, number, _ in bench.journal("began")}
    assert done == set(range(1, len(rows) + 1)), "every neighbour has run"


def test_several_deadly_rows_all_end_and_none_of_the_others_does(bench: Bench) -> None:
    deadly = (2, 3, 9, 14)
    add(bench, [(number % 5, 5, None) for number in range(15)], deadly)
    deaths = 0
    while deaths < 40 and bench.run("killer:hf", "--mode", "drain", *QUICK)[0]:
        deaths += 1
        recover_later(bench)
    assert deaths < 40
    retired = read(bench, "id", f"last_error like '%{DEATH_ERROR}%'")
    assert retired == [(number,) for number in deadly]
    assert count(bench, "inactive") == 15


def test_a_fleet_goes_on_until_a_deadly_row_is_retired(bench: Bench) -> None:
    """A supervisor with two processes, each of which dies of the row that it runs."""
    add(bench, [(4, 5, None)] * 20, (7,))
    fleet = bench.start("killer:hf", "--processes", "2", *QUICK)
    until(lambda: count(bench, "inactive") == 20, "all rows have ended", seconds=90)
    fleet.send(signal.SIGTERM)
    assert fleet.ended() == 0, fleet.log
    assert read(bench, "id", f"last_error like '%{DEATH_ERROR}%'") == [(7,)]
    assert count(bench, "attempts = 4") == 20


def recover_later(bench: Bench) -> None:
    """What a sweep does an hour later."""

    async def main() -> None:
        driver = connect(bench.dsn)
        later = ManualClock(datetime.now(UTC) + timedelta(hours=1))
        await TableLeases(driver, TableQueue("email_snoozes"), later).recover([])
        await driver.close()

    asyncio.run(main())
