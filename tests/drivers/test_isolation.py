"""Every transaction of ours states its isolation level, whatever default the server has."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest

from holdfast import Holdfast, Job
from holdfast.errors import DatabaseError
from holdfast.models import ClaimRule, NewJob
from holdfast.stores.postgres.drivers import connect, wrap
from holdfast.stores.postgres.store import PostgresStore
from tests.drivers.every_driver import ALL_KINDS, ASYNC_KINDS, DSN_KINDS, eventually, opened, value
from tests.faults.pgbouncer import pooler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path
    from typing import Literal

    from tests.servers import Database

LEVELS = ["repeatable read", "serializable"]
ISOLATION = "select current_setting('transaction_isolation')"
LIMIT = 3


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def dsn(level: str, pg18: Database) -> Iterator[str]:
    """The schema for a role whose transactions have that level by default."""
    role = f"strict_{secrets.token_hex(4)}"
    with psycopg.connect(pg18.server_dsn, autocommit=True) as connection:
        connection.execute(f"create role {role} login superuser".encode())
        connection.execute(
            f"alter role {role} set default_transaction_isolation = '{level}'".encode()
        )
    yield pg18.dsn.replace("postgresql://postgres@", f"postgresql://{role}@")
    with psycopg.connect(pg18.server_dsn, autocommit=True) as connection:
        connection.execute(f"drop owned by {role} cascade".encode())
        connection.execute(f"drop role {role}".encode())


@pytest.mark.parametrize("kind", ALL_KINDS)
async def test_a_transaction_is_read_committed_and_leaves_the_callers_default(
    kind: str, dsn: str, level: str
) -> None:
    async with opened(kind, dsn) as driver:
        async with driver.transaction() as tx:
            assert await value(tx, ISOLATION) == "read committed"
        # Statements alone are in a transaction of their own: ours on our connections.
        expected = "read committed" if kind in DSN_KINDS else level
        assert await value(driver, ISOLATION) == expected


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_claim_that_waited_for_another_counts_what_that_one_took(
    kind: str, dsn: str, witness: Any
) -> None:
    rule = ClaimRule("mail", timedelta(seconds=60), concurrency_limit=LIMIT)
    waits = (
        "select count(*) from pg_stat_activity"
        " where datname = current_database() and wait_event_type = 'Lock'"
    )
    first = await asyncpg.connect(dsn)
    store = PostgresStore(wrap(first))
    await store.install()
    await store.jobs.insert([NewJob("mail")] * 9, "raise")
    async with opened(kind, dsn) as driver:
        second = PostgresStore(driver).leases
        async with first.transaction(isolation="read_committed"):
            mine = await store.leases.claim([rule], limit=LIMIT, worker="a")
            late = asyncio.ensure_future(second.claim([rule], limit=LIMIT, worker="b"))

            async def waiting() -> bool:
                return bool(await witness.fetchval(waits))

            await eventually(waiting)
        assert len(mine) == LIMIT
        assert await late == []
    await first.close()


async def test_a_limit_of_the_fleet_holds_on_callers_pools(dsn: str) -> None:
    async with pools(dsn, 6) as fleet:
        assert await most_claimed(dsn, fleet) == LIMIT


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
async def test_a_limit_of_the_fleet_holds_through_a_pooler(
    library: Literal["asyncpg", "psycopg"], level: str, pg18: Database, server_directory: Path
) -> None:
    """No setting of the session holds there."""
    name = pg18.server_dsn.rpartition("/")[2]
    with psycopg.connect(pg18.server_dsn, autocommit=True) as connection:
        setting = f"alter database {name} set default_transaction_isolation"
        connection.execute(f"{setting} = '{level}'".encode())
        try:
            with pooler(pg18, server_directory) as made:
                assert await most_at_once(made.dsn, library) <= LIMIT
        finally:
            connection.execute(setting.replace(" set ", " reset ").encode())


async def most_at_once(dsn: str, library: Literal["asyncpg", "psycopg"]) -> int:
    """Jobs that eight workers ran at one time under the limit."""
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def limited(job: Job) -> None:
        running["now"] += 1
        most["now"] = max(most["now"], running["now"])
        await asyncio.sleep(0.05)
        running["now"] -= 1

    async with AsyncExitStack() as stack:
        made = [Holdfast.connect(dsn, driver=library) for _ in range(8)]
        fleet = [await stack.enter_async_context(hf) for hf in made]
        await fleet[0].install()
        for hf in fleet:
            hf.entrypoint("limited", concurrency_limit=LIMIT)(limited)
        await fleet[0].queries.enqueue_many([NewJob("limited") for _ in range(60)])
        async with asyncio.timeout(60):
            while await fleet[0].queries.queue_size():
                drains = (hf.run(mode="drain", batch_size=1, signals=False) for hf in fleet)
                await asyncio.gather(*drains)
    return most["now"]


@asynccontextmanager
async def pools(dsn: str, count: int) -> AsyncIterator[list[Any]]:
    made = [await asyncpg.create_pool(dsn, min_size=1, max_size=2) for _ in range(count)]
    yield made
    for pool in made:
        pool.terminate()


async def most_claimed(dsn: str, fleet: list[Any]) -> int:
    stores = [PostgresStore(wrap(pool)) for pool in fleet]
    await stores[0].install()
    await stores[0].jobs.insert([NewJob("mail")] * 30, "raise")
    rule = ClaimRule("mail", timedelta(seconds=60), concurrency_limit=LIMIT)
    claims = [
        store.leases.claim([rule], limit=1, worker=f"w{number}", sweep=True)
        for number, store in enumerate([*stores] * 3)
    ]
    return sum(map(len, await asyncio.gather(*claims)))


async def test_a_claim_under_a_limit_refuses_a_callers_snapshot(dsn: str, level: str) -> None:
    """The caller's transaction is not ours to change, and its snapshot cannot count."""
    connection = await asyncpg.connect(dsn)
    store = PostgresStore(wrap(connection))
    await store.install()
    await store.jobs.insert([NewJob("mail")], "raise")
    rule = ClaimRule("mail", timedelta(seconds=60), concurrency_limit=LIMIT)
    with pytest.raises(DatabaseError, match=f"'mail'.*{level}.*read committed"):
        async with connection.transaction():
            await store.leases.claim([rule], limit=1, worker="w")
    assert len(await store.leases.claim([rule], limit=1, worker="w")) == 1
    await connection.close()


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "sync"])
@pytest.mark.parametrize("key", [None, "once"])
async def test_an_enqueue_joins_a_callers_transaction_of_any_isolation(
    kind: str, key: str | None, dsn: str, level: str
) -> None:
    owner = connect(dsn)
    await PostgresStore(owner).install()
    async with opened(kind, dsn) as driver:
        await driver.script("begin")
        [job_id] = await PostgresStore(driver).jobs.insert([NewJob("mail", dedupe_key=key)], "skip")
        assert job_id is not None
        assert await value(driver, ISOLATION) == level
        await driver.script("commit")
    assert await value(owner, "select count(*) from holdfast") == 1
    await owner.close()
