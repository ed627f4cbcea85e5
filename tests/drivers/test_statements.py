"""Every driver sends and returns the same values, and reports the same errors."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import ConnectionLost, DatabaseError, DuplicateJobError
from tests.drivers.every_driver import CONFLICT, sent, value

if TYPE_CHECKING:
    from holdfast.stores.postgres.drivers.base import Driver

NOON = datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30)))
UUID = uuid.UUID("6f0c9d3e-8a51-4f0e-9a57-0d3b1c2d4e5f")
SCALARS: list[tuple[str, object]] = [
    ("bigint", 2**63 - 1),
    ("bigint", -1),
    ("int", 7),
    ("smallint", 7),
    ("bool", True),
    ("text", "käse \\ \"quoted\" 'single' {brace}, ☃"),
    ("text", ""),
    ("bytea", b"\x00\xff\\x00'\""),
    ("bytea", b""),
    ("timestamptz", NOON),
    ("timestamptz", datetime(100, 1, 1, tzinfo=UTC)),
    ("interval", timedelta(days=-3, seconds=5, microseconds=7)),
    ("interval", timedelta(days=4000, microseconds=-1)),
    ("uuid", UUID),
    ("jsonb", '{"a": [1, null, "☃"]}'),
    ("json", '{"b":  1}'),
    ("float8", 1.5),
]
ARRAYS: list[tuple[str, list[object]]] = [
    ("text", ["a", None, "", "NULL", 'q"u\\o,te{}', " padded "]),
    ("int", [1, None, -5]),
    ("bigint", [2**40, None, 3, -(2**63)]),
    ("bool", [True, None, False]),
    ("bytea", [b"\x00\xff", None, b"", b"plain"]),
    ("timestamptz", [NOON, None]),
    ("interval", [timedelta(hours=-30), None, timedelta(0)]),
    ("uuid", [UUID, None]),
]


async def test_a_value_comes_back_as_it_was_sent(driver: Driver) -> None:
    for kind, given in SCALARS:
        found = await value(driver, f"select $1::{kind}", given)
        assert (kind, found) == (kind, given)
        assert isinstance(found, type(given))
        assert await value(driver, f"select $1::{kind}", None) is None


async def test_an_array_comes_back_with_its_nulls(driver: Driver) -> None:
    for kind, given in ARRAYS:
        for array in (given, [None, None], []):
            found = await value(driver, f"select $1::{kind}[]", array)
            assert (kind, found) == (kind, array)


async def test_parallel_arrays_unnest_into_rows(driver: Driver) -> None:
    sql = "select * from unnest($1::text[], $2::interval[], $3::bytea[], $4::bigint[])"
    day = timedelta(days=1)

    rows = await driver.fetch(sql, (["a", None], [None, day], [b"\0", None], [1, 2**40]))
    assert [tuple(row) for row in rows] == [("a", None, b"\0", 1), (None, day, None, 2**40)]
    assert await driver.fetch(sql, ([], [], [], [])) == []
    rows = await driver.fetch(sql, ([None], [None], [None], [None]))
    assert [tuple(row) for row in rows] == [(None, None, None, None)]


async def test_instants_are_utc_and_enums_are_text_in_any_session(driver: Driver) -> None:
    await driver.script(
        "create type mood as enum ('good', 'bad'); set timezone to 'Asia/Kolkata';"
        " set datestyle to 'German'; set intervalstyle to 'sql_standard'"
    )
    sql = "select $1::timestamptz, $2::mood, $3::interval, array[$1::timestamptz]"

    async with driver.transaction() as tx:
        ((instant, mood, span, instants),) = await tx.fetch(sql, (NOON, "bad", timedelta(hours=-1)))

    assert (instant, mood, span) == (NOON, "bad", timedelta(hours=-1))
    assert instant.utcoffset() == instants[0].utcoffset() == timedelta(0)


async def test_infinite_instants_are_the_ends_of_time(driver: Driver) -> None:
    sql = "select 'infinity'::timestamptz, '-infinity'::timestamptz"

    ((end, start),) = await driver.fetch(sql)

    assert (end.year, start.year) == (9999, 1)


async def test_infinite_days_are_the_ends_of_time_too(driver: Driver) -> None:
    for kind in ("timestamp", "date"):
        sql = f"select 'infinity'::{kind}, '-infinity'::{kind}, '2024-02-29'::{kind}"
        ((end, start, leap_day),) = await driver.fetch(sql)
        assert (end.year, start.year, leap_day.year) == (9999, 1, 2024)


@pytest.mark.parametrize(
    "odd", ["'20255-01-01'::timestamptz", "'24:00'::time", "'4000-1-1 BC'::date"]
)
async def test_a_value_that_python_has_no_room_for_is_a_database_error(
    driver: Driver, odd: str
) -> None:
    # More often than it takes to be prepared.
    for _ in range(7):
        with pytest.raises(DatabaseError) as caught:
            await driver.fetch(f"select n, {odd} from generate_series(1, 9) n")
        assert not isinstance(caught.value, ConnectionLost)
        assert await value(driver, "select 1") == 1


async def test_a_statement_without_rows_gives_an_empty_list(driver: Driver) -> None:
    assert await driver.fetch("create table nothing (id bigint)") == []
    assert await driver.fetch("insert into nothing values ($1)", (1,)) == []
    assert [tuple(row) for row in await driver.fetch("select id from nothing")] == [(1,)]


async def test_a_script_runs_all_its_statements(driver: Driver) -> None:
    await driver.script("create table t (note text); insert into t values ('100% $1')")

    assert await value(driver, "select note from t") == "100% $1"


async def test_a_transaction_commits_at_its_end(driver: Driver) -> None:
    await driver.script("create table t (id bigint)")

    async with driver.transaction() as tx:
        await tx.fetch("insert into t values (1)")
        async with tx.transaction() as inner:
            await inner.fetch("insert into t values (2)")

    assert await value(driver, "select array_agg(id) from t") == [1, 2]


async def test_a_transaction_that_raises_leaves_nothing(driver: Driver) -> None:
    await driver.script("create table t (id bigint)")

    async def work() -> None:
        async with driver.transaction() as tx:
            await tx.fetch("insert into t values (1)")
            raise OSError("not a database error")

    with pytest.raises(OSError, match="not a database error"):
        await work()

    assert await value(driver, "select count(*) from t") == 0


async def test_a_savepoint_that_raises_keeps_the_outer_work(driver: Driver) -> None:
    await driver.script("create table t (id bigint primary key)")

    async with driver.transaction() as tx:
        await tx.fetch("insert into t values (1)")
        with pytest.raises(DatabaseError):
            async with tx.transaction() as inner:
                await inner.fetch("insert into t values (1)")
        await tx.fetch("insert into t values (2)")

    assert await value(driver, "select array_agg(id) from t") == [1, 2]


async def test_a_taken_dedupe_key_is_named(driver: Driver) -> None:
    await driver.script("create table t (k text); create unique index t_dedupe_key on t (k)")

    for key in ("plain", "a)=(b", "(x) already exists.", "☃ 'q'"):
        await driver.fetch("insert into t values ($1)", (key,))
        with pytest.raises(DuplicateJobError) as caught:
            await driver.fetch("insert into t values ($1)", (key,))
        assert caught.value.dedupe_key == key


async def test_an_error_of_the_server_keeps_its_code_and_drops_the_data(driver: Driver) -> None:
    await driver.script("create table t (secret text, n int not null); create unique index on t(n)")

    with pytest.raises(DatabaseError) as caught:
        await driver.fetch("insert into t values ($1, null)", ("hunter2",))
    assert caught.value.sqlstate == "23502"
    assert not isinstance(caught.value, ConnectionLost)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__

    with pytest.raises(DatabaseError) as caught:
        await driver.fetch("select $1::text::uuid", ("hunter2",))
    assert caught.value.sqlstate == "22P02"
    assert "hunter2" not in str(caught.value)


async def test_a_missing_argument_is_no_lost_connection(driver: Driver) -> None:
    with pytest.raises(DatabaseError) as caught:
        await driver.fetch("select $1::int")
    assert not isinstance(caught.value, ConnectionLost)
    assert await value(driver, "select 1") == 1


async def test_an_argument_that_cannot_be_sent_is_a_database_error(driver: Driver) -> None:
    for broken in ("lone \ud800 surrogate", "nul \0 byte"):
        with pytest.raises(DatabaseError) as caught:
            await driver.fetch("select $1::text", (broken,))
        assert "surrogate'" not in str(caught.value)
    assert await value(driver, "select 1") == 1


async def test_a_conflict_is_retried_three_times(driver: Driver) -> None:
    await driver.script(CONFLICT)

    assert await sent(driver, "select conflict(3)") == 4
    await driver.script("alter sequence tries restart")
    with pytest.raises(DatabaseError) as caught:
        await sent(driver, "select conflict(9)")
    assert caught.value.sqlstate == "40001"
    assert await value(driver, "select last_value from tries") == 4


async def test_a_conflict_inside_a_transaction_is_not_retried(driver: Driver) -> None:
    await driver.script(CONFLICT)

    with pytest.raises(DatabaseError) as caught:
        async with driver.transaction() as tx:
            await sent(tx, "select conflict(9)")

    assert caught.value.sqlstate == "40001"
    assert await value(driver, "select last_value from tries") == 1
