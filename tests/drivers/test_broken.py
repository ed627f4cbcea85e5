"""Backends that die, servers that only read, networks that swallow everything."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import ConnectionFailed, ConnectionLost, DeadlineExceeded
from holdfast.settings import Names
from holdfast.stores.postgres.render import Statement, statements
from holdfast.stores.postgres.runner import send
from tests.drivers.every_driver import (
    ALL_KINDS,
    ASYNC_KINDS,
    DSN_KINDS,
    PATIENCE,
    dsn_driver,
    ends,
    opened,
    sent,
    value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from holdfast.stores.postgres.drivers.base import Driver
    from tests.faults.proxy import Proxy
    from tests.servers import Database


@pytest.mark.parametrize("kind", ALL_KINDS)
async def test_a_killed_backend_is_a_lost_connection(
    kind: str, pg18: Database, witness: Any
) -> None:
    async with opened(kind, pg18.dsn) as driver:
        with pytest.raises(ConnectionLost):
            await driver.fetch("select pg_terminate_backend(pg_backend_pid())")
        if kind in [*DSN_KINDS, "asyncpg_pool"]:
            assert await value(driver, "select 1") == 1
        else:
            with pytest.raises(ConnectionLost):
                await driver.fetch("select 1")


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_a_transaction_on_a_killed_backend_is_lost_and_the_next_one_works(
    kind: str, pg18: Database, witness: Any
) -> None:
    await witness.execute("create table t (id bigint)")

    async def work(driver: Driver) -> None:
        async with driver.transaction() as tx:
            await tx.fetch("insert into t values (1)")
            pid = await value(tx, "select pg_backend_pid()")
            await witness.execute("select pg_terminate_backend($1, 5000)", pid)

    async with opened(kind, pg18.dsn) as driver:
        with pytest.raises(ConnectionLost):
            await work(driver)
        async with driver.transaction() as tx:
            await tx.fetch("insert into t values (2)")
        assert await value(driver, "select array_agg(id) from t") == [2]


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_a_statement_refused_by_a_read_only_server_is_sent_through_a_new_connection(
    kind: str, pg18: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(kind, pg18.dsn) as driver:
        before = await value(driver, "select pg_backend_pid()")
        await driver.script("set default_transaction_read_only to on")
        await sent(driver, "create table t (id bigint)")
        assert await value(driver, "select pg_backend_pid()") != before
    assert "the server takes no changes" in caplog.text


@pytest.mark.parametrize("kind", ALL_KINDS)
async def test_a_server_that_stays_read_only_has_changed_nothing(kind: str, pg18: Database) -> None:
    dsn = f"{pg18.dsn}%20-cdefault_transaction_read_only%3Don"
    async with opened(kind, dsn) as driver:
        with pytest.raises(ConnectionFailed, match="nothing was changed") as caught:
            await driver.fetch("create table t (id bigint)")
        assert caught.value.sqlstate == "25006"


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_swallowed_statement_ends_at_its_deadline(
    kind: str, pg18: Database, proxy: Proxy
) -> None:
    async with opened(kind, proxy.dsn, timeout=0.3) as driver:
        assert await value(driver, "select 1") == 1
        await proxy.swallow()
        with pytest.raises(DeadlineExceeded, match=r"0\.3 s"):
            await ends(driver.fetch("select 2"))
        await proxy.flow()
        if kind in [*DSN_KINDS, "asyncpg_pool"]:
            assert await value(driver, "select 3") == 3
        else:
            with pytest.raises(ConnectionLost):
                await driver.fetch("select 3")


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_swallowed_commit_ends_at_its_deadline(
    kind: str, pg18: Database, proxy: Proxy
) -> None:
    async def work(driver: Driver) -> None:
        async with driver.transaction() as tx:
            await tx.fetch("select 1")
            await proxy.swallow()

    async with opened(kind, proxy.dsn, timeout=0.3) as driver:
        with pytest.raises(DeadlineExceeded):
            await ends(work(driver))


async def one_statement(driver: Driver) -> None:
    await driver.fetch("select 2")


async def one_transaction(driver: Driver) -> None:
    async with driver.transaction() as tx:
        await tx.fetch("select 2")


@pytest.mark.parametrize("kind", ASYNC_KINDS)
@pytest.mark.parametrize("work", [one_statement, one_transaction])
async def test_a_swallowed_call_can_be_cancelled(
    kind: str, work: Callable[[Driver], Coroutine[Any, Any, None]], pg18: Database, proxy: Proxy
) -> None:
    async with opened(kind, proxy.dsn) as driver:
        assert await value(driver, "select 1") == 1
        await proxy.swallow()
        task = asyncio.ensure_future(work(driver))
        for _ in range(10):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=PATIENCE)
        assert done
        assert task.cancelled()


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_an_event_loop_ends_although_its_connection_is_swallowed(
    kind: str, pg18: Database, proxy: Proxy
) -> None:
    dsn, stuck = proxy.dsn, asyncio.Event()
    outer = asyncio.get_running_loop()

    async def work() -> None:
        driver = dsn_driver(kind, dsn)
        await driver.fetch("select 1")
        waiting = asyncio.ensure_future(driver.fetch("select pg_sleep(60)"))
        await asyncio.sleep(0)
        asyncio.run_coroutine_threadsafe(proxy.swallow(), outer)
        outer.call_soon_threadsafe(stuck.set)
        waiting.cancel()
        await asyncio.wait({waiting})
        await driver.close()

    await asyncio.wait_for(asyncio.to_thread(asyncio.run, work()), PATIENCE)
    assert stuck.is_set()


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_a_statement_that_reads_is_sent_again_when_its_connection_was_lost(
    kind: str, pg18: Database, witness: Any
) -> None:
    sql = "select pg_backend_pid(), count(*) from generate_series(1, 3)"
    async with opened(kind, pg18.dsn) as driver:

        async def lose_and_send(*, reads: bool) -> tuple[int, Any]:
            pid = await value(driver, "select pg_backend_pid()")
            await witness.fetchval("select pg_terminate_backend($1)", pid)
            return pid, await ends(send(driver, Statement("sleep", sql, (), reads=reads), ()))

        pid, [[other, count]] = await lose_and_send(reads=True)
        assert (other != pid, count) == (True, 3)
        with pytest.raises(ConnectionLost):  # noqa: PT012
            # The client may see the end of the connection first. Then it opens another one.
            for _ in range(50):
                await lose_and_send(reads=False)


def test_only_statements_that_change_nothing_are_sent_again() -> None:
    rendered = statements(Names())
    reading = {name for name in rendered.names() if rendered[name].reads}
    assert {"get", "size", "log", "now", "lanes", "workers", "statistics"} <= reading
    assert not {"claim", "complete", "renew", "recover", "report", "limit_lock"} & reading
    assert not [name for name in reading if "for update" in rendered[name].text]
