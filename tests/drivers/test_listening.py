"""Notifications arrive, beside statements, until the connection ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from holdfast.errors import ConnectionLost, InvalidInput
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgPoolDriver
from tests.drivers.every_driver import (
    ASYNC_KINDS,
    DSN_KINDS,
    OWNED_KINDS,
    PATIENCE,
    ends,
    eventually,
    opened,
    value,
)

if TYPE_CHECKING:
    from holdfast.stores.postgres.drivers.base import Driver
    from tests.faults.proxy import Proxy
    from tests.servers import Database

LISTENING = "holdfast.stores.postgres.drivers.listening"


class Listening:
    """A listen() in the background, and what it has heard."""

    def __init__(self, driver: Driver, channel: str) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()
        self._ready = asyncio.Event()
        self.task = asyncio.ensure_future(
            driver.listen(channel, self.heard.put_nowait, self._ready.set)
        )

    async def __aenter__(self) -> Listening:
        ready = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait({ready, self.task}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        assert self._ready.is_set(), self.task
        return self

    async def __aexit__(self, *failure: object) -> None:
        self.task.cancel()
        await asyncio.wait({self.task}, timeout=PATIENCE)
        assert self.task.done()

    async def next(self) -> str:
        async with asyncio.timeout(60):
            return await self.heard.get()


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_notifications_arrive_from_others_and_from_oneself(
    kind: str, pg18: Database, witness: Any
) -> None:
    channel = f"Odd {pg18.schema}"
    async with opened(kind, pg18.dsn) as driver, Listening(driver, channel) as listening:
        await witness.execute("select pg_notify($1, 'outside')", channel)
        assert await listening.next() == "outside"
        await driver.fetch("select pg_notify($1, $2)", (channel, "inside"))
        assert await listening.next() == "inside"
        async with driver.transaction() as tx:
            await tx.fetch("select pg_notify($1, $2)", (channel, "committed"))
        assert await listening.next() == "committed"


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_listening_ends_with_its_cancellation_and_can_begin_again(
    kind: str, pg18: Database, witness: Any
) -> None:
    async with opened(kind, pg18.dsn) as driver:
        async with Listening(driver, pg18.schema) as first:
            pass
        assert first.task.cancelled()
        async with Listening(driver, pg18.schema) as second:
            await witness.execute("select pg_notify($1, 'again')", pg18.schema)
            assert await second.next() == "again"
        assert first.heard.empty()
        if kind != "asyncpg_pool":
            assert await driver.fetch("select pg_listening_channels()") == []


@pytest.mark.parametrize("kind", [*DSN_KINDS, *OWNED_KINDS])
async def test_statements_get_their_turn_on_a_connection_that_listens(
    kind: str, pg18: Database, witness: Any
) -> None:
    other = f"{pg18.schema}_2"
    async with (
        opened(kind, pg18.dsn) as driver,
        Listening(driver, pg18.schema) as one,
        Listening(driver, other) as two,
    ):
        for number in range(200):
            assert await value(driver, "select $1::int", number) == number
            await witness.execute("select pg_notify($1, $2)", pg18.schema, str(number))
            await witness.execute("select pg_notify($1, $2)", other, str(-number))
        assert [await one.next() for _ in range(200)] == [str(n) for n in range(200)]
        assert [await two.next() for _ in range(200)] == [str(-n) for n in range(200)]


@pytest.mark.parametrize("kind", [*DSN_KINDS, *OWNED_KINDS])
async def test_a_handler_of_notifications_that_raises_breaks_nothing(
    kind: str, pg18: Database, caplog: pytest.LogCaptureFixture
) -> None:
    ready = asyncio.Event()

    def refuse(payload: str) -> None:
        raise RuntimeError(payload)

    async def logged() -> bool:
        return "could not be handled" in caplog.text

    async with opened(kind, pg18.dsn) as driver:
        task = asyncio.ensure_future(driver.listen(pg18.schema, refuse, ready.set))
        await asyncio.wait_for(ready.wait(), 10)
        await driver.fetch("select pg_notify($1, $2)", (pg18.schema, "x"))
        await eventually(logged)
        assert await value(driver, "select 1") == 1
        assert not task.done()
        task.cancel()
        await asyncio.wait({task})


async def test_a_pool_of_one_refuses_to_listen(pg18: Database) -> None:
    async with asyncpg.create_pool(pg18.dsn, min_size=1, max_size=1) as pool:
        with pytest.raises(InvalidInput, match="max_size"):
            await AsyncpgPoolDriver(pool).listen("c", print, lambda: None)


async def test_a_pool_runs_statements_side_by_side(pg18: Database, witness: Any) -> None:
    await witness.execute("select pg_advisory_lock(hashtext($1))", pg18.schema)
    async with opened("asyncpg_pool", pg18.dsn) as driver:
        assert driver.concurrent
        blocked = asyncio.ensure_future(
            driver.fetch("select pg_advisory_xact_lock(hashtext($1))", (pg18.schema,))
        )
        assert await value(driver, "select 1") == 1
        assert not blocked.done()
        await witness.execute("select pg_advisory_unlock(hashtext($1))", pg18.schema)
        await asyncio.wait_for(blocked, 10)


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_listener_learns_that_its_backend_was_killed(
    kind: str, pg18: Database, witness: Any
) -> None:
    pids = "select array_agg(pid) from pg_stat_activity where datname = current_database()"
    others = await witness.fetchval(pids)
    async with opened(kind, pg18.dsn) as driver, Listening(driver, pg18.schema) as listening:
        await witness.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> all($1)",
            others,
        )
        with pytest.raises(ConnectionLost):
            await ends(asyncio.wait_for(listening.task, None))


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_half_open_listener_is_noticed(
    kind: str, pg18: Database, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{LISTENING}.PING_EVERY", 0.1)
    monkeypatch.setattr(f"{LISTENING}.PING_TIMEOUT", 0.3)
    dsn = proxy.dsn
    async with opened(kind, dsn) as driver, Listening(driver, pg18.schema) as listening:
        await proxy.swallow()
        with pytest.raises(ConnectionLost):
            await ends(asyncio.wait_for(listening.task, None))
