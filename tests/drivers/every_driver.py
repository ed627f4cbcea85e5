"""Drivers of every kind, and the patience to test them with."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg

from holdfast.stores.postgres.drivers import connect
from holdfast.stores.postgres.drivers.asyncpg import AsyncpgDriver, AsyncpgPoolDriver
from holdfast.stores.postgres.drivers.psycopg import PsycopgDriver, SyncPsycopgDriver
from holdfast.stores.postgres.render import Statement
from holdfast.stores.postgres.runner import send

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from holdfast.stores.postgres.drivers.base import Driver
    from holdfast.stores.postgres.drivers.reconnecting import Reconnecting

DSN_KINDS = ["asyncpg_dsn", "psycopg_dsn"]
OWNED_KINDS = ["asyncpg", "psycopg", "psycopg_manual"]
SYNC_KINDS = ["sync", "sync_manual"]
ASYNC_KINDS = [*DSN_KINDS, *OWNED_KINDS, "asyncpg_pool"]
ALL_KINDS = [*ASYNC_KINDS, *SYNC_KINDS]

# Far below the six seconds that psycopg alone takes to give up on a dead socket.
PATIENCE = 3.0
CONFLICT = """
create sequence tries;
create function conflict(failures int) returns bigint language plpgsql as $$
declare n bigint := nextval('tries');
begin
    if n <= failures then raise exception 'again' using errcode = '40001'; end if;
    return n;
end $$
"""


@asynccontextmanager
async def opened(kind: str, dsn: str, timeout: float = 10.0) -> AsyncIterator[Driver]:
    match kind:
        case "asyncpg":
            connection = await asyncpg.connect(dsn)
            yield AsyncpgDriver(connection, timeout=timeout)
            connection.terminate()
        case "asyncpg_pool":
            pool = await asyncpg.create_pool(dsn, min_size=1, max_size=3)
            yield AsyncpgPoolDriver(pool, timeout=timeout)
            pool.terminate()
        case "psycopg" | "psycopg_manual":
            autocommit = kind == "psycopg"
            aconnection = await psycopg.AsyncConnection.connect(dsn, autocommit=autocommit)
            yield PsycopgDriver(aconnection, timeout=timeout)
            await aconnection.close()
        case "sync" | "sync_manual":
            with psycopg.connect(dsn, autocommit=kind == "sync") as sync_connection:
                yield SyncPsycopgDriver(sync_connection)
        case _:
            driver = dsn_driver(kind, dsn, timeout=timeout)
            yield driver
            await driver.close()


def dsn_driver(kind: str, dsn: str, **options: Any) -> Reconnecting:
    library: Any = kind.removesuffix("_dsn")
    return connect(dsn, driver=library, **options)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it holds: what another session does raises no event here."""
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def value(driver: Driver, sql: str, *args: object) -> Any:
    ((found,),) = await driver.fetch(sql, args)
    return found


async def sent(driver: Driver, sql: str) -> Any:
    """The value of a statement that is repeated as the store's are."""
    rows = await send(driver, Statement("test", sql, ()), ())
    return rows[0][0] if rows else None


async def ends(work: Coroutine[Any, Any, Any]) -> Any:
    """What the work returns, unless it outlasts the patience of the test."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=PATIENCE)
    assert done, "the call hung"
    return task.result()
