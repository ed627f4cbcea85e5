"""A statement that is given up is ended on the server, and costs no second connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import DatabaseError, DeadlineExceeded
from tests.drivers.every_driver import ALL_KINDS, DSN_KINDS, dsn_driver, eventually, opened, value

if TYPE_CHECKING:
    from holdfast.stores.postgres.drivers.base import Driver
    from tests.faults.proxy import Proxy
    from tests.servers import Database

TIMEOUT = 0.4


async def backends(witness: Any, marker: str) -> int:
    return int(
        await witness.fetchval(
            "select count(*) from pg_stat_activity"
            " where query like '%' || $1 || '%' and pid <> pg_backend_pid()",
            marker,
        )
    )


@pytest.mark.parametrize("kind", ALL_KINDS)
async def test_what_waits_for_a_locked_table_is_cancelled_at_its_deadline(
    kind: str, pg: Database, pg_witness: Any
) -> None:
    marker = f"/* {pg.schema} */"
    await pg_witness.execute("create table t (id bigint)")
    async with opened(kind, pg.dsn) as driver:
        before = await value(driver, "select pg_backend_pid()")
        async with pg_witness.transaction():
            await pg_witness.execute("lock table t")
            for _ in range(4):
                with pytest.raises(DeadlineExceeded):
                    await driver.fetch(f"insert into t values (1) {marker}", timeout=TIMEOUT)
                assert await backends(pg_witness, marker) <= 1
                waiting = "select count(*) from pg_locks where relation = 't'::regclass"
                assert await pg_witness.fetchval(f"{waiting} and not granted") == 0
        assert await value(driver, "select count(*) from t") == 0
        assert await value(driver, "select pg_backend_pid()") == before


@pytest.mark.parametrize("kind", ALL_KINDS)
async def test_a_transaction_with_a_statement_that_was_given_up_is_rolled_back(
    kind: str, pg18: Database, witness: Any
) -> None:
    async def work(driver: Driver) -> None:
        async with driver.transaction() as tx:
            await tx.fetch("insert into t values (1)")
            await tx.fetch("select pg_sleep(30)", timeout=TIMEOUT)

    await witness.execute("create table t (id bigint)")
    async with opened(kind, pg18.dsn) as driver:
        with pytest.raises(DeadlineExceeded):
            await work(driver)
        assert await value(driver, "select count(*) from t") == 0


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_the_server_ends_what_a_vanished_client_has_left(
    kind: str, pg18: Database, proxy: Proxy, witness: Any
) -> None:
    """The network swallows the cancellation: the server's own limit holds."""
    marker = f"/* {pg18.schema} */"
    driver = dsn_driver(kind, proxy.dsn, timeout=0.8)
    await driver.fetch("select 1")
    waiting = asyncio.ensure_future(driver.fetch(f"select pg_sleep(30) {marker}"))
    active = "select count(*) from pg_stat_activity where state = 'active' and query like $1"

    async def at_work() -> bool:
        return bool(await witness.fetchval(f"{active} and pid <> pg_backend_pid()", f"%{marker}%"))

    async def at_rest() -> bool:
        return not await at_work()

    await eventually(at_work)
    await proxy.swallow()
    with pytest.raises(DeadlineExceeded):
        await waiting
    await eventually(at_rest)
    await driver.close()


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_what_may_take_longer_than_a_statement_is_given_the_time(
    kind: str, pg18: Database
) -> None:
    driver = dsn_driver(kind, pg18.dsn, timeout=0.3)
    limit = await value(driver, "show statement_timeout")
    await driver.script("select pg_sleep(1.6)")
    await driver.fetch("select pg_sleep(1.6)", timeout=5.0)
    async with driver.transaction() as tx:
        await tx.script("select pg_sleep(1.6)")
        assert await value(tx, "show statement_timeout") == limit
    with pytest.raises(DatabaseError):
        await driver.script("select 1 / 0")
    assert await value(driver, "show statement_timeout") == limit
    await driver.close()


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_limits_that_the_owner_of_the_server_has_set_are_kept(
    kind: str, pg18: Database
) -> None:
    dsn = f"{pg18.dsn}%20-cstatement_timeout%3D7s%20-clock_timeout%3D3s"
    driver = dsn_driver(kind, dsn)
    await driver.script("select 1")
    assert await value(driver, "show statement_timeout") == "7s"
    assert await value(driver, "show lock_timeout") == "3s"
    await driver.close()
