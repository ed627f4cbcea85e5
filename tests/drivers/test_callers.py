"""A caller's own connection keeps its transaction, its settings and its life."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row

from holdfast.errors import InvalidInput
from holdfast.stores.postgres.drivers import wrap
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver, AsyncpgPoolDriver
from holdfast.stores.postgres.drivers.psycopg import PsycopgDriver, SyncPsycopgDriver
from tests.drivers.every_driver import (
    ALL_KINDS,
    CONFLICT,
    OWNED_KINDS,
    SYNC_KINDS,
    opened,
    sent,
    value,
)

if TYPE_CHECKING:
    from holdfast.stores.postgres.drivers.base import Driver
    from tests.servers import Database


@pytest.mark.parametrize("kind", ALL_KINDS)
async def test_a_statement_on_an_idle_connection_is_committed(
    kind: str, pg18: Database, witness: Any
) -> None:
    async with opened(kind, pg18.dsn) as driver:
        await driver.fetch("create table t (id bigint)")
        await driver.fetch("insert into t values ($1)", (1,))
        assert await witness.fetchval("select count(*) from t") == 1


@pytest.mark.parametrize("autocommit", [True, False])
async def test_a_transaction_of_the_callers_psycopg_connection_is_joined(
    autocommit: bool, pg18: Database, witness: Any
) -> None:
    await witness.execute("create table t (id bigint)")
    async with await psycopg.AsyncConnection.connect(pg18.dsn, autocommit=autocommit) as connection:
        driver = PsycopgDriver(connection)
        async with connection.transaction(force_rollback=True):
            await connection.execute("insert into t values (1)")
            await driver.fetch("insert into t values ($1)", (2,))
            async with driver.transaction() as tx:
                await tx.fetch("insert into t values (3)")
            assert await value(driver, "select count(*) from t") == 3
            assert await witness.fetchval("select count(*) from t") == 0
        assert await value(driver, "select count(*) from t") == 0


@pytest.mark.parametrize("autocommit", [True, False])
async def test_a_transaction_of_the_callers_sync_connection_is_joined(
    autocommit: bool, pg18: Database, witness: Any
) -> None:
    await witness.execute("create table t (id bigint)")
    with psycopg.connect(pg18.dsn, autocommit=autocommit) as connection:
        driver = SyncPsycopgDriver(connection)
        with connection.transaction(force_rollback=True):
            connection.execute("insert into t values (1)")
            await driver.fetch("insert into t values ($1)", (2,))
            async with driver.transaction() as tx:
                await tx.fetch("insert into t values (3)")
            assert await value(driver, "select count(*) from t") == 3
        assert await value(driver, "select count(*) from t") == 0


@pytest.mark.parametrize("by_hand", [True, False])
async def test_a_transaction_of_the_callers_asyncpg_connection_is_joined(
    by_hand: bool, pg18: Database, witness: Any
) -> None:
    await witness.execute("create table t (id bigint)")
    connection = await asyncpg.connect(pg18.dsn)
    driver, block = AsyncpgDriver(connection), connection.transaction()

    await (connection.execute("begin") if by_hand else block.start())
    await driver.fetch("insert into t values ($1)", (2,))
    async with driver.transaction() as tx:
        await tx.fetch("insert into t values (3)")
    assert await value(driver, "select count(*) from t") == 2
    await (connection.execute("rollback") if by_hand else block.rollback())

    assert await value(driver, "select count(*) from t") == 0
    await connection.close()


async def test_the_callers_adapters_and_row_factory_are_left_alone(pg18: Database) -> None:
    sql = "select '{\"a\": 1}'::jsonb as j, 5 as n"
    async with await psycopg.AsyncConnection.connect(
        pg18.dsn, autocommit=True, row_factory=dict_row
    ) as connection:
        rows = await PsycopgDriver(connection).fetch(sql)
        assert [tuple(row) for row in rows] == [('{"a": 1}', 5)]
        theirs = await (await connection.execute(sql)).fetchone()
    assert theirs == {"j": {"a": 1}, "n": 5}


@pytest.mark.parametrize("autocommit", [True, False])
def test_the_sync_driver_never_suspends_and_needs_no_loop(autocommit: bool, pg18: Database) -> None:
    async def work(driver: Driver) -> Any:
        await driver.script(CONFLICT)
        async with driver.transaction() as tx:
            await tx.fetch("select $1::int", (1,))
        return await sent(driver, "select conflict(1)")

    with psycopg.connect(pg18.dsn, autocommit=autocommit) as connection:
        driver = SyncPsycopgDriver(connection)
        with pytest.raises(StopIteration) as caught:
            work(driver).send(None)
        assert caught.value.value == 2
        with pytest.raises(InvalidInput, match="cannot listen"):
            driver.listen("c", print, print).send(None)


@pytest.mark.parametrize("kind", [*OWNED_KINDS, *SYNC_KINDS, "asyncpg_pool"])
async def test_a_driver_of_a_callers_connection_forks_to_itself_and_closes_nothing(
    kind: str, pg18: Database
) -> None:
    async with opened(kind, pg18.dsn) as driver:
        assert driver.fork("heartbeat") is driver
        assert not driver.dedicated
        await driver.close()
        assert await value(driver, "select 1") == 1


async def test_wrap_finds_the_driver_of_a_connection(pg18: Database) -> None:
    class Special(asyncpg.Connection):  # type: ignore[misc]
        pass

    async with (
        asyncpg.create_pool(pg18.dsn, min_size=1, connection_class=Special) as pool,
        pool.acquire() as connection,
        await psycopg.AsyncConnection.connect(pg18.dsn) as aconnection,
    ):
        assert isinstance(wrap(pool), AsyncpgPoolDriver)
        assert isinstance(wrap(connection), AsyncpgDriver)
        assert isinstance(wrap(aconnection), PsycopgDriver)
        assert isinstance(wrap(driver := PsycopgDriver(aconnection)), PsycopgDriver)
        assert wrap(driver) is driver
        with psycopg.connect(pg18.dsn) as sync_connection:
            assert isinstance(wrap(sync_connection), SyncPsycopgDriver)
        for wrong in ("postgresql://me:s3cret@host/db", aconnection.cursor(), None):
            with pytest.raises(InvalidInput, match=type(wrong).__name__) as caught:
                wrap(wrong)
            assert "s3cret" not in str(caught.value)
