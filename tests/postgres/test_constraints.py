"""The database itself refuses rows that the lifecycle does not know, whoever writes them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from holdfast.lifecycle import FINAL, LIVE, Status
from tests import servers
from tests.postgres import tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Database, SharedServers

LEASED = {
    "claim_token": "gen_random_uuid()",
    "claimed_by": "'worker'",
    "claimed_at": "now()",
    "heartbeat": "now()",
    "lease": "interval '30 s'",
}
PICKED = {"status": "'picked'", **LEASED}
HELD = {"status": "'failed'", "held_at": "now()"}


@pytest.fixture(scope="module", params=sorted(servers.available()))
def database(request: pytest.FixtureRequest, pg_servers: SharedServers) -> Iterator[Database]:
    """One schema for all: no test leaves a row."""

    async def install(dsn: str) -> None:
        async with tables.installed(dsn):
            pass

    with pg_servers.schema(request.param) as made:
        asyncio.run(install(made.dsn))
        yield made


async def insert(connection: Any, values: dict[str, str]) -> None:
    values = {"entrypoint": "'mail'", **values}
    await connection.execute(
        f"insert into holdfast ({', '.join(values)}) values ({', '.join(values.values())})"
    )


async def refusal(database: Database, *rows: dict[str, str]) -> str:
    """The constraint that refuses the last of these rows; the others are welcome."""
    async with tables.session(database.dsn) as connection:
        transaction = connection.transaction()
        await transaction.start()
        for row in rows[:-1]:
            await insert(connection, row)
        with pytest.raises(asyncpg.IntegrityConstraintViolationError) as caught:
            await insert(connection, rows[-1])
        await transaction.rollback()
    return str(caught.value.constraint_name or caught.value.column_name)


async def accepted(database: Database, *rows: dict[str, str]) -> None:
    async with tables.session(database.dsn) as connection:
        transaction = connection.transaction()
        await transaction.start()
        for row in rows:
            await insert(connection, row)
        await transaction.rollback()


async def test_every_live_state_has_a_row_that_is_accepted(database: Database) -> None:
    rows = {Status.QUEUED: {}, Status.PICKED: PICKED, Status.FAILED: HELD}
    assert set(rows) == set(LIVE)
    await accepted(database, *rows.values())


@pytest.mark.parametrize("column", LEASED)
async def test_a_picked_row_must_have_every_column_of_its_lease(
    database: Database, column: str
) -> None:
    row = {name: value for name, value in PICKED.items() if name != column}
    assert await refusal(database, row) == "holdfast_leased_while_picked"


async def test_a_row_that_is_not_picked_may_keep_the_columns_of_an_old_lease(
    database: Database,
) -> None:
    """A person queued it by hand. The lease counts only while the row is picked."""
    await accepted(database, LEASED, HELD | LEASED)


async def test_a_held_row_must_say_since_when(database: Database) -> None:
    assert await refusal(database, {"status": "'failed'"}) == "holdfast_held_while_failed"


async def test_a_row_that_is_not_held_must_not_say_since_when(database: Database) -> None:
    held_at = {"held_at": "now()"}
    assert await refusal(database, held_at) == "holdfast_held_while_failed"
    assert await refusal(database, PICKED | held_at) == "holdfast_held_while_failed"


@pytest.mark.parametrize("status", FINAL)
async def test_a_job_that_ended_cannot_be_in_the_queue_table(
    database: Database, status: Status
) -> None:
    assert await refusal(database, {"status": f"'{status}'"}) == "holdfast_lives_here"


@pytest.mark.parametrize("counter", ["attempts", "recoveries"])
async def test_counters_are_never_negative(database: Database, counter: str) -> None:
    assert await refusal(database, {counter: "-1"}) == f"holdfast_{counter}_check"


@pytest.mark.parametrize("cap", ["max_attempts", "max_recoveries"])
async def test_a_cap_allows_at_least_one(database: Database, cap: str) -> None:
    assert await refusal(database, {cap: "0"}) == f"holdfast_{cap}_check"


@pytest.mark.parametrize("owner", [{}, PICKED], ids=["queued", "picked"])
@pytest.mark.parametrize("second", [{}, PICKED], ids=["queued", "picked"])
async def test_a_key_has_one_active_owner(
    database: Database, owner: dict[str, str], second: dict[str, str]
) -> None:
    key = {"dedupe_key": "'k'"}
    assert await refusal(database, owner | key, second | key) == "holdfast_dedupe_key"


async def test_held_rows_and_rows_without_a_key_do_not_compete_for_one(database: Database) -> None:
    key = {"dedupe_key": "'k'"}
    await accepted(database, HELD | key, HELD | key, PICKED | key, {}, {})


async def test_an_active_row_cannot_lose_its_token_without_changing_state(
    database: Database,
) -> None:
    async with tables.session(database.dsn) as connection:
        transaction = connection.transaction()
        await transaction.start()
        await insert(connection, PICKED)
        with pytest.raises(asyncpg.CheckViolationError):
            await connection.execute("update holdfast set claim_token = null")
        await transaction.rollback()


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("insert into holdfast (id, entrypoint) values (1, 'mail')", "identity"),
        ("insert into holdfast (entrypoint) values (null)", "null"),
        ("insert into holdfast (entrypoint, status) values ('mail', 'done')", "enum"),
    ],
)
async def test_rows_that_make_no_sense_are_refused(
    database: Database, statement: str, reason: str
) -> None:
    async with tables.session(database.dsn) as connection:
        with pytest.raises(asyncpg.PostgresError) as caught:
            await connection.execute(statement)
    assert reason in f"{caught.value} {caught.value.detail} {caught.value.hint}".lower()


@pytest.mark.parametrize("column", ["misfire", "overlap"])
async def test_a_schedule_has_only_policies_that_exist(database: Database, column: str) -> None:
    async with tables.session(database.dsn) as connection:
        with pytest.raises(asyncpg.CheckViolationError):
            await connection.execute(
                f"insert into holdfast_schedules (name, expression, next_run, {column})"
                " values ('s', '* * * * *', now(), 'sometimes')"
            )


async def test_the_record_of_what_is_counted_has_one_row(database: Database) -> None:
    async with tables.session(database.dsn) as connection:
        for only_row in ("true", "false"):
            with pytest.raises(asyncpg.IntegrityConstraintViolationError):
                await connection.execute(f"insert into holdfast_counted values ({only_row}, 1)")
