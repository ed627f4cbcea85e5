"""What cannot be joined is refused with the reason and the fix, before anything is sent."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import psycopg2
import pytest
import pytest_asyncio
from psycopg.pq import TransactionStatus
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from holdfast.app import Holdfast
from holdfast.errors import CarrierError, InvalidInput, NoTransaction
from tests.carriers.callers import async_engine, engine, opened, settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers import Database, SharedServers

AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}


@pytest_asyncio.fixture
async def hf(pg18: Database) -> AsyncIterator[Holdfast]:
    async with Holdfast.connect(pg18.dsn) as found:
        await found.install()
        yield found


async def refused(hf: Holdfast, transaction: Any, *words: str) -> CarrierError:
    with pytest.raises(CarrierError) as caught:
        await settled(hf.queries.on(transaction).enqueue("ship"))
    for word in words:
        assert word in str(caught.value)
    assert await hf.queries.queue_size() == []
    return caught.value


@pytest.mark.parametrize("kind", ["asyncpg", "asyncpg_pool", "psycopg"])
async def test_a_connection_in_no_transaction(hf: Holdfast, pg18: Database, kind: str) -> None:
    async with opened(kind, pg18) as caller:
        error = await refused(hf, caller.joined, "in no transaction", "autocommit=True")
        assert isinstance(error, NoTransaction)
        queries = hf.queries.on(caller.joined, autocommit=True)
        await queries.enqueue("ship")
        assert len(await hf.queries.browse_queue()) == 1


async def test_a_connection_after_its_transaction(hf: Holdfast, pg18: Database) -> None:
    async with opened("asyncpg", pg18) as caller:
        async with caller.transaction():
            queries = hf.queries.on(caller.joined)
            await queries.queue_size()
        with pytest.raises(NoTransaction):
            await queries.enqueue("ship")


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
async def test_an_autocommit_engine(hf: Holdfast, pg18: Database, driver: str) -> None:
    pool = engine(pg18, driver, **AUTOCOMMIT)
    with pool.connect() as connection:
        assert isinstance(await refused(hf, connection, "AUTOCOMMIT"), NoTransaction)
        hf.queries.on(connection, autocommit=True).enqueue("ship")
    pool.dispose()
    assert len(await hf.queries.browse_queue()) == 1


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_an_async_autocommit_engine(hf: Holdfast, pg18: Database, driver: str) -> None:
    pool = async_engine(pg18, driver, **AUTOCOMMIT)
    async with AsyncSession(pool) as session:
        assert isinstance(await refused(hf, session, "AUTOCOMMIT"), NoTransaction)
        await hf.queries.on(session, autocommit=True).enqueue("ship")
    await pool.dispose()
    assert len(await hf.queries.browse_queue()) == 1


async def test_bare_sync_connections_in_autocommit(hf: Holdfast, pg18: Database) -> None:
    with psycopg.connect(pg18.dsn, autocommit=True) as connection:
        await refused(hf, connection, "psycopg connection is in no transaction")
    old = psycopg2.connect(pg18.dsn)
    old.autocommit = True
    await refused(hf, old, "psycopg2 connection is in no transaction")
    hf.queries.on(old, autocommit=True).enqueue("ship")
    old.close()
    assert len(await hf.queries.browse_queue()) == 1


async def test_what_is_closed(hf: Holdfast, pg18: Database) -> None:
    connection = await asyncpg.connect(pg18.dsn)
    await connection.close()
    await refused(hf, connection, "asyncpg connection is closed")
    async with asyncpg.create_pool(pg18.dsn, min_size=1, max_size=1) as pool:
        async with pool.acquire() as lent:
            pass
        await refused(hf, lent, "asyncpg connection is closed")
    with psycopg.connect(pg18.dsn) as sync:
        pass
    await refused(hf, sync, "psycopg connection is closed")
    old = psycopg2.connect(pg18.dsn)
    old.close()
    await refused(hf, old, "psycopg2 connection is closed")
    pool = engine(pg18, "psycopg")
    with pool.connect() as closed:
        pass
    await refused(hf, closed, "cannot be joined", "closed")
    with Session(pool, close_resets_only=False) as session:
        pass
    await refused(hf, session, "cannot be joined", "closed")
    pool.dispose()


async def test_a_session_that_waits_for_a_rollback(hf: Holdfast, pg18: Database) -> None:
    pool = engine(pg18, "psycopg")
    with Session(pool) as session:
        hf.queries.on(session).queue_size()
        session.begin_nested()
        session.connection().invalidate()
        await refused(hf, session, "cannot be joined", "rollback")
    pool.dispose()


async def test_a_transaction_that_an_error_has_ended(hf: Holdfast, pg18: Database) -> None:
    pool, awaited = engine(pg18, "psycopg"), async_engine(pg18, "asyncpg")
    with Session(pool) as session:
        for _ in range(2):
            with pytest.raises(DBAPIError):
                session.execute(text("select 1 / 0"))
            await refused(hf, session, "an error has ended", "roll it back")
            # It was joined before from here on, so its database is known.
            session.rollback()
            hf.queries.on(session).queue_size()
    async with AsyncSession(awaited) as asynchronous:
        with pytest.raises(DBAPIError):
            await asynchronous.execute(text("select 1 / 0"))
        await refused(hf, asynchronous, "an error has ended", "savepoint")
    pool.dispose()
    await awaited.dispose()


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "AsyncSession-asyncpg"])
async def test_a_transaction_that_may_only_read(hf: Holdfast, pg18: Database, kind: str) -> None:
    async with opened(kind, pg18) as caller:
        with suppress(DBAPIError, asyncpg.PostgresError, psycopg.Error):
            async with caller.transaction():
                await caller.execute("set transaction read only")
                await refused(hf, caller.joined, "may only read", "the primary server")


@pytest.mark.parametrize("kind", ["asyncpg", "AsyncSession-asyncpg"])
async def test_what_another_task_uses(hf: Holdfast, pg18: Database, kind: str) -> None:
    async with opened(kind, pg18) as caller, caller.transaction():
        await hf.queries.on(caller.joined).queue_size()
        theirs = asyncio.create_task(caller.execute("select pg_sleep(0.3)"))
        await asyncio.sleep(0)
        await refused(hf, caller.joined, "in use by another task", "of its own")
        await theirs
        await hf.queries.on(caller.joined).enqueue("ship")
    assert len(await hf.queries.browse_queue()) == 1


async def test_code_without_an_event_loop(hf: Holdfast, pg18: Database) -> None:
    ship = hf.task(name="ship")(_ship)
    pool = async_engine(pg18, "asyncpg")
    async with AsyncSession(pool) as session:
        with pytest.raises(InvalidInput, match=r"await enqueue\(\) instead"):
            ship.on(session).enqueue_sync(1)
        # The session is as it was before.
        await ship.on(session).enqueue(1)
        await session.commit()
    assert len(await hf.queries.browse_queue()) == 1
    await pool.dispose()


async def _ship(order: int) -> None: ...


async def test_another_database(hf: Holdfast, pg18: Database) -> None:
    async with await psycopg.AsyncConnection.connect(pg18.server_dsn) as elsewhere:
        await elsewhere.execute("select 1")
        await refused(hf, elsewhere, "sees no tables of Holdfast", "search_path")
        assert elsewhere.info.transaction_status is TransactionStatus.INTRANS
        await elsewhere.execute("select 1")
    lite = create_engine("sqlite://")
    with Session(lite) as session:
        await refused(hf, session, "sqlite", "PostgreSQL")
    lite.dispose()


@pytest.mark.parametrize("kind", ["asyncpg_pool", "psycopg_sync", "AsyncSession-psycopg"])
async def test_the_tables_of_another_holdfast(
    hf: Holdfast, pg18: Database, pg_servers: SharedServers, kind: str
) -> None:
    with pg_servers.schema(pg18.name) as other:
        async with Holdfast.connect(other.dsn) as theirs, opened(kind, other) as caller:
            await theirs.install()
            async with caller.transaction():
                await refused(hf, caller.joined, "other tables", "connect Holdfast to that one")
                await settled(theirs.queries.on(caller.joined).enqueue("ship"))
            assert len(await theirs.queries.browse_queue()) == 1


async def test_a_connection_is_asked_once_for_its_database(hf: Holdfast, pg18: Database) -> None:
    sent: list[str] = []
    async with opened("asyncpg", pg18) as caller:
        caller.joined.add_query_logger(lambda record: sent.append(record.query))
        for _ in range(2):
            async with caller.transaction():
                await hf.queries.on(caller.joined).enqueue("ship")
    assert len(await hf.queries.browse_queue()) == 2
    assert ["pg_postmaster_start_time" in query for query in sent].count(True) == 1


async def test_what_is_no_transaction(hf: Holdfast, pg18: Database) -> None:
    pool, apool = engine(pg18, "psycopg"), async_engine(pg18, "asyncpg")
    async with asyncpg.create_pool(pg18.dsn, min_size=1, max_size=1) as theirs:
        others = (pool, apool, sessionmaker(pool), async_sessionmaker(apool), theirs, None, 7)
        for other in others:
            await refused(hf, other, ".on() takes", type(other).__name__)
        await hf.queries.on(theirs, autocommit=True).enqueue("ship")
    with pytest.raises(CarrierError) as caught:
        hf.queries.on("postgresql://ann:secret@localhost/x")
    assert "secret" not in str(caught.value)
    pool.dispose()
    await apool.dispose()


async def test_a_sync_session_inside_run_sync(hf: Holdfast, pg18: Database) -> None:
    pool = async_engine(pg18, "asyncpg")
    async with AsyncSession(pool) as session:
        with pytest.raises(CarrierError, match="pass the AsyncSession"):
            await session.run_sync(lambda inner: hf.queries.on(inner).enqueue("ship"))
    await pool.dispose()
