"""A role that may only connect takes every lock it can: nothing of ours waits for it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest

from holdfast import Holdfast, Job, NewJob
from holdfast.models import ClaimRule
from holdfast.settings import Names
from holdfast.stores.postgres.drivers import connect, wrap
from holdfast.stores.postgres.migration import migrations
from holdfast.stores.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.servers import Database

PATIENCE = 100.0
TAKEN = """
select pg_advisory_lock(hashtextextended(key, 0)) from unnest($1::text[]) as key
"""


@pytest.fixture
def stranger(pg: Database) -> Iterator[str]:
    """The name of a role that may connect, and nothing else."""
    with made_stranger(pg) as role:
        yield role


@pytest.fixture
def stranger18(pg18: Database) -> Iterator[str]:
    with made_stranger(pg18) as role:
        yield role


@contextmanager
def made_stranger(database: Database) -> Iterator[str]:
    role = f"stranger_{secrets.token_hex(4)}"
    with psycopg.connect(database.server_dsn, autocommit=True) as connection:
        connection.execute(f"create role {role} login".encode())
        yield role
        connection.execute(f"drop role {role}".encode())


@asynccontextmanager
async def locks(database: Database, role: str, *keys: str) -> AsyncIterator[None]:
    """Advisory locks of the stranger on our keys, and on those of earlier versions."""
    dsn = database.server_dsn.replace("postgresql://postgres@", f"postgresql://{role}@")
    connection = await asyncpg.connect(dsn)
    try:
        await connection.fetch(TAKEN, list(keys))
        yield
    finally:
        await connection.close()


async def drained(hf: Holdfast) -> None:
    async with asyncio.timeout(PATIENCE):
        while await hf.queries.queue_size():
            await hf.run(mode="drain", signals=False)


async def test_entrypoints_with_a_limit_go_on(pg: Database, stranger: str) -> None:
    done: list[Job] = []
    async with Holdfast.connect(pg.dsn) as hf:
        await hf.install()

        @hf.entrypoint("limited", concurrency_limit=2)
        async def limited(job: Job) -> None:
            done.append(job)

        async with locks(pg, stranger, 'holdfast limit "holdfast" limited'):
            await hf.queries.enqueue_many([NewJob("limited")] * 10)
            await drained(hf)
    assert len(done) == 10


async def test_an_installation_goes_on(pg: Database, stranger: str) -> None:
    name = Names().schema
    async with (
        locks(pg, stranger, f"holdfast migrate {name}", f"holdfast migrate {pg.schema}"),
        Holdfast.connect(pg.dsn) as hf,
        asyncio.timeout(PATIENCE),
    ):
        assert await hf.install()
        await hf.verify()


async def test_wake_ups_arrive_and_the_log_names_the_stranger(
    pg18: Database, stranger18: str, caplog: pytest.LogCaptureFixture
) -> None:
    channel = Names().channel
    sessions = (
        "select count(*) from pg_stat_activity"
        " where datname = current_database() and application_name like 'holdfast:%'"
    )
    done: asyncio.Queue[bytes] = asyncio.Queue()
    witness = await asyncpg.connect(pg18.dsn)
    async with Holdfast.connect(pg18.dsn) as hf:
        await hf.install()

        @hf.entrypoint("mail")
        async def mail(job: Job) -> None:
            done.put_nowait(job.payload or b"")

        async with locks(pg18, stranger18, f"listeners of {channel}"):
            hour = timedelta(hours=1)
            work = asyncio.create_task(hf.run(signals=False, dequeue_timeout=hour))
            async with asyncio.timeout(PATIENCE):
                while "need wake-ups is held by" not in caplog.text:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            before = await witness.fetchval(sessions)
            for n in range(20):
                await hf.queries.enqueue("mail", b"%d" % n)
                async with asyncio.timeout(PATIENCE):
                    assert await done.get() == b"%d" % n
            assert await witness.fetchval(sessions) <= before + 1
        # After the stranger has left, the worker says by itself that it needs wake-ups.
        await listened(witness, channel)
        await hf.queries.enqueue("mail", b"last")
        async with asyncio.timeout(PATIENCE):
            assert await done.get() == b"last"
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    await witness.close()
    lines = [line for line in caplog.messages if "need wake-ups is held by" in line]
    assert len(lines) == 1
    assert stranger18 in lines[0]


async def listened(witness: Any, channel: str) -> None:
    free = "select pg_try_advisory_lock(k), pg_advisory_unlock(k) from hashtextextended($1, 0) k"
    async with asyncio.timeout(PATIENCE):
        while (await witness.fetchrow(free, f"listeners of {channel}"))[0]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_who_keeps_a_limit_locked_is_named_once(
    pg: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes our privileges to do so, and it is still no reason for silence."""
    rule = ClaimRule("mail", timedelta(seconds=10), concurrency_limit=2)
    mine = await asyncpg.connect(pg.dsn, server_settings={"application_name": "backup"})
    other = await asyncpg.connect(pg.dsn)
    store = PostgresStore(wrap(other))
    await store.install()
    await store.jobs.insert([NewJob("mail")] * 9, "raise")
    assert len(await store.leases.claim([rule], limit=1, worker="b")) == 1
    async with mine.transaction():
        await mine.execute("select from holdfast_limits for update")
        with caplog.at_level(logging.WARNING):
            for _ in range(5):
                assert await store.leases.claim([rule], limit=1, worker="b") == []
    assert len(await store.leases.claim([rule], limit=1, worker="b")) == 1
    [line] = [line for line in caplog.messages if "its limit is locked by" in line]
    assert "'mail'" in line
    assert f"process {mine.get_server_pid()} of postgres (backup), idle in transaction" in line
    await mine.close()
    await other.close()


async def test_installations_at_once_make_one(pg: Database) -> None:
    for schema in (None, f"{pg.schema}_more"):
        names = Names(schema=schema[:31] if schema else None)
        stores = [PostgresStore(connect(pg.dsn), names) for _ in range(6)]
        found = await asyncio.gather(*(store.install() for store in stores))
        assert sorted(map(bool, found)) == [False] * 5 + [True]
        await stores[0].verify()
        if names.schema:
            await stores[0].driver.script(f"drop schema {names.schema} cascade")
        for store in stores:
            await store.close()


async def test_an_installation_that_waits_says_for_whom(
    pg: Database, caplog: pytest.LogCaptureFixture
) -> None:
    mine = await asyncpg.connect(pg.dsn, server_settings={"application_name": "backup"})
    try:
        async with Holdfast.connect(pg.dsn) as hf:
            await mine.execute(
                "create table holdfast_migrations (version integer primary key, name text not null,"
                " applied_at timestamptz not null default now(),"
                " compatible boolean not null default false)"
            )
            transaction = mine.transaction()
            await transaction.start()
            await mine.execute("lock table holdfast_migrations in row exclusive mode")
            work = asyncio.create_task(hf.install())
            async with asyncio.timeout(PATIENCE):
                while "held by process" not in caplog.text:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await transaction.rollback()
            async with asyncio.timeout(PATIENCE):
                assert len(await work) == len(migrations())
        assert f"process {mine.get_server_pid()} of postgres (backup)" in caplog.text
    finally:
        await mine.close()
