"""Dead rows are removed when they are many, by whoever may, and not again and again in vain."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import pytest

from holdfast import Holdfast, Job
from holdfast.clock import SystemClock
from holdfast.settings import Names
from holdfast.stores.postgres import vacuum
from holdfast.stores.postgres.drivers import connect
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver
from holdfast.stores.postgres.grants import DatabaseRole
from holdfast.stores.postgres.render import statements
from holdfast.stores.postgres.runner import Runner
from holdfast.stores.postgres.vacuum import Vacuum
from holdfast.worker import sweep
from tests.postgres import tables
from tests.security.roles import granted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.stores.postgres.drivers.base import Driver
    from tests.servers import Database

MANY = 500
UNHURRIED = "%20-cvacuum_cost_delay%3D100%20-cvacuum_cost_limit%3D1"
"""For a DSN: a vacuum rests at every page."""


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum, "_MANY", MANY)


def over(driver: Driver) -> Runner:
    return Runner(driver, statements(Names()), SystemClock())


@asynccontextmanager
async def dedicated(dsn: str) -> AsyncIterator[Runner]:
    driver = connect(dsn)
    try:
        yield over(driver)
    finally:
        await driver.close()


async def leave_dead(connection: Any, count: int) -> None:
    """That many dead rows, in the server's count, and no other session to remove them."""
    await connection.execute("alter table holdfast set (autovacuum_enabled = off)")
    await connection.execute(
        f"insert into holdfast (entrypoint) select 'x' from generate_series(1, {count})"
    )
    await connection.execute("delete from holdfast")
    await connection.execute("select pg_stat_force_next_flush()")


async def vacuums(connection: Any) -> int:
    return int(await connection.fetchval("select pg_stat_get_vacuum_count('holdfast'::regclass)"))


async def vacuuming_now(connection: Any) -> bool:
    found = "select 1 from pg_stat_progress_vacuum where relid = 'holdfast'::regclass"
    return bool(await connection.fetchval(found))


async def test_a_table_is_vacuumed_when_many_of_its_rows_are_dead(pg: Database) -> None:
    async with tables.installed(pg.dsn) as (connection, _), dedicated(pg.dsn) as runner:
        vacuum = Vacuum(Names())
        await leave_dead(connection, MANY - 1)
        assert not await vacuum.run(runner)
        assert await vacuums(connection) == 0
        await leave_dead(connection, 1)
        assert await vacuum.run(runner)
        assert await vacuums(connection) == 1


async def test_a_large_backlog_is_not_vacuumed_for_few_dead_rows(pg18: Database) -> None:
    """Every vacuum reads the whole of its indexes."""
    async with tables.installed(pg18.dsn) as (connection, _), dedicated(pg18.dsn) as runner:
        vacuum = Vacuum(Names())
        await leave_dead(connection, 0)
        await connection.execute(
            f"insert into holdfast (entrypoint) select 'x' from generate_series(1, {10 * MANY})"
        )
        await connection.execute(f"delete from holdfast where id <= {MANY}")
        await connection.execute("select pg_stat_force_next_flush()")
        assert not await vacuum.run(runner)
        await connection.execute(f"delete from holdfast where id <= {3 * MANY}")
        await connection.execute("select pg_stat_force_next_flush()")
        assert await vacuum.run(runner)


async def test_what_an_old_transaction_still_sees_is_not_tried_again_until_it_has_doubled(
    pg18: Database,
) -> None:
    async with (
        tables.installed(pg18.dsn) as (connection, _),
        tables.session(pg18.dsn) as old,
        dedicated(pg18.dsn) as runner,
    ):
        vacuum = Vacuum(Names())
        async with old.transaction(isolation="repeatable_read"):
            await old.execute("select pg_current_xact_id()")
            await leave_dead(connection, MANY)
            assert await vacuum.run(runner)
            await leave_dead(connection, MANY // 2)
            assert not await vacuum.run(runner)
            await leave_dead(connection, MANY)
            assert await vacuum.run(runner)
            assert not await vacuum.run(runner)


async def test_a_table_that_another_session_vacuums_is_left_to_it(pg: Database) -> None:
    async with (
        tables.installed(pg.dsn) as (connection, _),
        tables.session(pg.dsn) as other,
        dedicated(pg.dsn) as runner,
    ):
        vacuum = Vacuum(Names())
        await leave_dead(connection, MANY)
        async with other.transaction():
            await other.execute("lock table holdfast in share update exclusive mode")
            assert not await vacuum.run(runner)
        assert await vacuums(connection) == 0
        assert await vacuum.run(runner)


async def test_of_two_at_once_neither_waits_for_the_other(pg18: Database) -> None:
    async with (
        tables.installed(pg18.dsn) as (connection, _),
        dedicated(pg18.dsn) as one,
        dedicated(pg18.dsn) as two,
    ):
        await leave_dead(connection, MANY)
        async with asyncio.timeout(60):
            tried = await asyncio.gather(*(Vacuum(Names()).run(each) for each in (one, two)))
        assert any(tried)
        assert 1 <= await vacuums(connection) <= sum(tried)


async def test_after_the_vacuum_of_another_session_the_old_measure_holds_again(
    pg18: Database,
) -> None:
    async with (
        tables.installed(pg18.dsn) as (connection, _),
        tables.session(pg18.dsn) as old,
        dedicated(pg18.dsn) as runner,
    ):
        vacuum = Vacuum(Names())
        async with old.transaction(isolation="repeatable_read"):
            await old.execute("select pg_current_xact_id()")
            await leave_dead(connection, 4 * MANY)
            assert await vacuum.run(runner)
        await connection.execute("select pg_stat_reset_single_table_counters('holdfast'::regclass)")
        assert not await vacuum.run(runner)
        await leave_dead(connection, MANY)
        assert await vacuum.run(runner)


async def test_on_a_callers_connection_nothing_is_vacuumed(pg18: Database) -> None:
    """It may be in a transaction, where that is impossible."""
    async with tables.installed(pg18.dsn) as (connection, _):
        await leave_dead(connection, MANY)
        assert not await Vacuum(Names()).run(over(AsyncpgDriver(connection)))


async def test_who_may_not_vacuum_leaves_it_to_the_server(pg: Database) -> None:
    with granted(pg) as roles:
        async with tables.session(pg.dsn) as owner:
            await leave_dead(owner, MANY)
            async with dedicated(roles.dsn(DatabaseRole.WORKER)) as runner:
                assert not await Vacuum(Names()).run(runner)
            assert await vacuums(owner) == 0


async def test_from_version_17_on_a_worker_can_be_allowed_to(pg18: Database) -> None:
    with granted(pg18) as roles:
        async with tables.session(pg18.dsn) as owner:
            await leave_dead(owner, MANY)
            name = roles.names.all()[DatabaseRole.WORKER]
            await owner.execute(f'grant maintain on holdfast, holdfast_leases to "{name}"')
            async with dedicated(roles.dsn(DatabaseRole.WORKER)) as runner:
                assert await Vacuum(Names()).run(runner)
            assert await vacuums(owner) == 1


async def test_a_busy_worker_clears_up_after_itself(
    pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_CLEAN_UP_SECONDS", 0.02)
    monkeypatch.setattr(sweep, "_CLEAN_UP_JOBS", 1)
    async with Holdfast.connect(pg.dsn) as hf, tables.session(pg.dsn) as connection:
        await hf.install()

        @hf.entrypoint("one")
        async def one(_: Job) -> None: ...

        run = asyncio.create_task(hf.run())
        async with asyncio.timeout(60):
            # A server counts what a session did once that is idle for a while, or in a second.
            while not await vacuums(connection):
                await hf.queries.enqueue(["one"] * MANY)
        hf.shutdown.set()
        await run


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_worker_that_is_stopped_ends_its_vacuum_and_does_not_wait_for_it(
    pg: Database, driver: Literal["asyncpg", "psycopg"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_CLEAN_UP_SECONDS", 0.02)
    monkeypatch.setattr(sweep, "_CLEAN_UP_JOBS", 1)
    async with (
        Holdfast.connect(pg.dsn + UNHURRIED, driver=driver) as hf,
        tables.session(pg.dsn) as connection,
    ):
        await hf.install()
        # Minutes, at that pace.
        await leave_dead(connection, 40 * MANY)

        @hf.entrypoint("one")
        async def one(_: Job) -> None: ...

        run = asyncio.create_task(hf.run())
        async with asyncio.timeout(60):
            while not await vacuuming_now(connection):
                await hf.queries.enqueue("one")
            hf.shutdown.set()
            await run
            while await vacuuming_now(connection):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await vacuums(connection) == 0
