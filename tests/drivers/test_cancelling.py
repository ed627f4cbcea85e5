"""A call that is cancelled stops in the server too, and leaves nothing half-done."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import ConnectionLost
from tests.drivers.every_driver import ASYNC_KINDS, OWNED_KINDS, PATIENCE, eventually, opened, value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.stores.postgres.drivers.base import Driver
    from tests.servers import Database


async def in_flight(witness: Any, marker: str) -> bool:
    return bool(
        await witness.fetchval(
            "select count(*) from pg_stat_activity where state = 'active'"
            " and query like '%' || $1 || '%' and pid <> pg_backend_pid()",
            marker,
        )
    )


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_cancelled_statement_stops_and_leaves_the_driver_usable(
    kind: str, pg18: Database, witness: Any
) -> None:
    marker = f"/* {pg18.schema} */"

    async def running() -> bool:
        return await in_flight(witness, marker)

    async def stopped() -> bool:
        return not await in_flight(witness, marker)

    async with opened(kind, pg18.dsn) as driver:
        for _ in range(3):
            task = asyncio.ensure_future(driver.fetch(f"select pg_sleep(60) {marker}"))
            await eventually(running)
            task.cancel()
            await asyncio.wait({task}, timeout=PATIENCE)
            assert task.cancelled()
            assert await value(driver, "select 1") == 1
            await eventually(stopped)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def was_asked_to_cancel(pid: int) -> bool:
    """Whether the signal of a cancellation waits for the process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [pending] = [line.split()[1] for line in lines if line.startswith("ShdPnd:")]
    return bool(int(pending, 16) & 1 << (signal.SIGINT - 1))


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_cancellation_that_comes_before_its_statement_is_repeated(
    kind: str, pg18: Database, witness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server forgets a cancellation while it has read no statement."""
    for name in ("asyncpg", "psycopg"):
        monkeypatch.setattr(f"holdfast.stores.postgres.drivers.{name}.CANCEL_SECONDS", 60.0)
    marker = f"/* {pg18.schema} */"
    sql = f"select pg_sleep($1) {marker}"

    async def asked() -> bool:
        return was_asked_to_cancel(pid)

    async def stopped() -> bool:
        return not await in_flight(witness, marker)

    async with opened(kind, pg18.dsn, timeout=60.0) as driver:
        for _ in range(10):
            # From now on it is prepared: a single message begins it.
            await driver.fetch(sql, (0,))
        pid = await value(driver, "select pg_backend_pid()")
        with frozen(pid):
            task = asyncio.ensure_future(driver.fetch(sql, (60,)))
            for _ in range(10):
                await asyncio.sleep(0)
            task.cancel()
            await eventually(asked)
        await asyncio.wait({task}, timeout=PATIENCE)
        assert task.cancelled()
        assert await asyncio.wait_for(value(driver, "select pg_backend_pid()"), PATIENCE) == pid
        await eventually(stopped)


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_cancelled_transaction_is_rolled_back(
    kind: str, pg18: Database, witness: Any
) -> None:
    marker = f"/* {pg18.schema} */"
    await witness.execute("create table t (id bigint)")

    async def work(driver: Driver) -> None:
        async with driver.transaction() as tx:
            await tx.fetch("insert into t values (1)")
            await tx.fetch(f"select pg_sleep(60) {marker}")

    async def running() -> bool:
        return await in_flight(witness, marker)

    async with opened(kind, pg18.dsn) as driver:
        task = asyncio.ensure_future(work(driver))
        await eventually(running)
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE)
        assert task.cancelled()
        async with driver.transaction() as tx:
            await tx.fetch("insert into t values (2)")
        assert await value(driver, "select array_agg(id) from t") == [2]


@pytest.mark.parametrize("kind", ASYNC_KINDS)
@pytest.mark.parametrize("nested", [False, True])
async def test_a_transaction_may_be_cancelled_at_any_moment(
    kind: str, nested: bool, pg18: Database, witness: Any
) -> None:
    await witness.execute("create table t (id bigint)")

    async def work(driver: Driver) -> None:
        async with driver.transaction() as tx:
            await tx.fetch("insert into t values (0)")
            if nested:
                await work_inside(tx)

    async def work_inside(tx: Driver) -> None:
        async with tx.transaction() as inner:
            await inner.fetch("insert into t values (0)")

    async with opened(kind, pg18.dsn) as driver:
        await work(driver)
        for moment in range(1, 160):
            task = asyncio.ensure_future(work(driver))
            for _ in range(moment):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task}, timeout=PATIENCE)
            assert task.done()
            async with driver.transaction() as tx:
                await tx.fetch("insert into t values ($1)", (moment,))
            assert await witness.fetchval("select count(*) from t where id = $1", moment) == 1


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_transaction_that_could_not_be_rolled_back_in_time_is_never_joined(
    kind: str, pg18: Database, witness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process stands still while the answer to the ROLLBACK comes, and comes too late."""
    monkeypatch.setattr("holdfast.stores.postgres.drivers.transactions.POLITE_END_SECONDS", 0.02)
    await witness.execute("create table t (id bigint)")

    async def work(driver: Driver) -> None:
        async with driver.transaction() as tx:
            await tx.fetch("insert into t values (0)")

    for moment in range(40):
        async with opened(kind, pg18.dsn) as driver:
            assert await value(driver, "select 1") == 1
            task = asyncio.ensure_future(work(driver))
            for _ in range(moment // 4):
                await asyncio.sleep(0)
            task.cancel()
            for _ in range(moment % 4):
                await asyncio.sleep(0)
            time.sleep(0.03)  # noqa: ASYNC251
            await asyncio.wait({task})
            try:
                async with driver.transaction() as tx:
                    await tx.fetch("insert into t values ($1)", (moment,))
            except ConnectionLost:
                assert kind in OWNED_KINDS
                continue
            assert await witness.fetchval("select count(*) from t where id = $1", moment) == 1
