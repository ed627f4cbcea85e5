"""A job enqueued through `.on(X)` shares the fate of the data that X writes."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import timedelta
from functools import cache
from itertools import cycle
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest
import pytest_asyncio
from sqlalchemy.orm import Session

from holdfast.app import Holdfast
from holdfast.client.queries import SyncQueries
from holdfast.errors import DuplicateJobError
from holdfast.lifecycle import Status
from holdfast.models import NewJob, Requeued
from tests import servers
from tests.carriers.callers import KINDS, Caller, opened, settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.servers import Database, SharedServers

PATIENCE = 60


def _chosen() -> list[str]:
    """Every library on every server in `make test-all`, otherwise on one of them by turns."""
    found = sorted(servers.available())
    if servers.ALL:
        return [f"{kind}@{server}" for kind in KINDS for server in found]
    return [f"{kind}@{server}" for kind, server in zip(KINDS, cycle(found), strict=False)]


class Undone(Exception):
    """Ends a transaction without a commit."""


class Shop:
    """The queue and an application's table of orders, as seen from outside."""

    def __init__(self, hf: Holdfast, connection: Any) -> None:
        self.hf = hf
        self.connection = connection

    async def jobs(self) -> list[bytes | None]:
        return [job.payload for job in reversed(await self.hf.queries.browse_queue(limit=100))]

    async def orders(self) -> list[int]:
        return [
            row["id"] for row in await self.connection.fetch("select id from orders order by 1")
        ]

    async def entries(self) -> int:
        return int(await self.connection.fetchval("select count(*) from holdfast_log"))


@pytest.fixture(scope="module")
def databases(pg_servers: SharedServers) -> Iterator[Callable[[str], Database]]:
    """One schema on each server for all tests of the module."""
    with ExitStack() as stack:

        @cache
        def installed(server: str) -> Database:
            database = stack.enter_context(pg_servers.schema(server))
            with psycopg.connect(database.dsn, autocommit=True) as connection:
                SyncQueries.from_psycopg_connection(connection).install()
                connection.execute("create table orders (id integer primary key)")
            return database

        yield installed


@pytest.fixture(params=_chosen())
def kind(request: pytest.FixtureRequest) -> str:
    """A library and a server."""
    return str(request.param)


@pytest.fixture
def database(kind: str, databases: Callable[[str], Database]) -> Database:
    """Emptied. Each table has a few rows, for which DELETE costs a tenth of TRUNCATE."""
    found = databases(kind.partition("@")[2])
    with psycopg.connect(found.dsn, autocommit=True) as connection:
        for table in ("holdfast", "holdfast_log", "holdfast_leases", "orders"):
            connection.execute(f"delete from {table}".encode())
    return found


@pytest_asyncio.fixture
async def shop(database: Database) -> AsyncIterator[Shop]:
    async with Holdfast.connect(database.dsn) as hf:
        connection = await asyncpg.connect(database.dsn)
        yield Shop(hf, connection)
        await connection.close(timeout=5)


@pytest_asyncio.fixture
async def caller(kind: str, database: Database) -> AsyncIterator[Caller]:
    async with opened(kind.partition("@")[0], database) as found:
        yield found


@asynccontextmanager
async def undone(caller: Caller) -> AsyncIterator[None]:
    with suppress(Undone):
        async with caller.transaction():
            yield
            raise Undone


async def test_a_commit_keeps_the_job_and_the_data(shop: Shop, caller: Caller) -> None:
    async with caller.transaction():
        queries = shop.hf.queries.on(caller.joined)
        [job_id] = await settled(queries.enqueue("ship", b"1"))
        assert await settled(queries.job_status([job_id])) == [(job_id, Status.QUEUED)]
        await caller.execute("insert into orders values (1)")
        assert await shop.jobs() == []
    assert (await shop.jobs(), await shop.orders()) == ([b"1"], [1])


async def test_calls_of_several_tasks_take_turns(shop: Shop, caller: Caller) -> None:
    async def place(order: int) -> None:
        await settled(shop.hf.queries.on(caller.joined).enqueue("ship", b"%d" % order))

    async with caller.transaction():
        await asyncio.gather(*map(place, range(5)))
    assert sorted(await shop.jobs(), key=str) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_rollback_with_nothing_flushed_before_leaves_no_job(
    shop: Shop, caller: Caller
) -> None:
    async with undone(caller):
        await settled(shop.hf.queries.on(caller.joined).enqueue("ship", b"1", dedupe_key="k"))
    assert (await shop.jobs(), await shop.entries()) == ([], 0)
    # The connection serves the next transaction as if nothing had been.
    async with caller.transaction():
        await settled(shop.hf.queries.on(caller.joined).enqueue("ship", b"2", dedupe_key="k"))
    assert await shop.jobs() == [b"2"]


async def test_a_rollback_after_other_statements_leaves_no_job(shop: Shop, caller: Caller) -> None:
    async with undone(caller):
        await caller.execute("insert into orders values (1)")
        await settled(shop.hf.queries.on(caller.joined).enqueue(["ship"] * 2, [b"1", b"2"]))
    assert (await shop.jobs(), await shop.orders(), await shop.entries()) == ([], [], 0)


async def test_a_savepoint_takes_only_its_own_jobs_back(shop: Shop, caller: Caller) -> None:
    queries = shop.hf.queries.on(caller.joined)
    async with caller.transaction():
        await settled(queries.enqueue("ship", b"outside"))
        with suppress(Undone):
            async with caller.savepoint():
                await settled(queries.enqueue("ship", b"undone"))
                raise Undone
        async with caller.savepoint():
            await settled(queries.enqueue("ship", b"kept"))
        await settled(queries.enqueue("ship", b"after"))
    assert await shop.jobs() == [b"outside", b"kept", b"after"]


@pytest.mark.parametrize("count", [1, 2])
async def test_a_duplicate_key_does_not_end_the_transaction(
    shop: Shop, caller: Caller, count: int
) -> None:
    await shop.hf.queries.enqueue("ship", b"first", dedupe_key="k")
    async with caller.transaction():
        queries = shop.hf.queries.on(caller.joined)
        await caller.execute("insert into orders values (1)")
        jobs = [NewJob("ship", b"none"), NewJob("ship", b"second", dedupe_key="k")][-count:]
        with pytest.raises(DuplicateJobError) as caught:
            await settled(queries.enqueue_many(jobs))
        assert caught.value.dedupe_key == "k"
        skipped = await settled(queries.enqueue("ship", dedupe_key="k", on_conflict="skip"))
        assert skipped == [None]
        await settled(queries.enqueue("ship", b"third", dedupe_key="other"))
        await caller.execute("insert into orders values (2)")
    assert (await shop.jobs(), await shop.orders()) == ([b"first", b"third"], [1, 2])


async def test_an_error_of_the_application_leaves_no_job(shop: Shop, caller: Caller) -> None:
    async def order() -> None:
        async with caller.transaction():
            await settled(shop.hf.queries.on(caller.joined).enqueue("ship"))
            await caller.execute("insert into orders values (1), (1)")

    with pytest.raises(Exception, match="duplicate key"):
        await order()
    assert (await shop.jobs(), await shop.orders()) == ([], [])


async def test_operators_work_in_the_transaction_as_well(shop: Shop, caller: Caller) -> None:
    waiting, other = await shop.hf.queries.enqueue(["ship"] * 2)
    held = await _held(shop)
    async with undone(caller):
        queries = shop.hf.queries.on(caller.joined)
        assert await settled(queries.mark_job_as_cancelled([waiting])) == {waiting}
        assert await settled(queries.requeue_jobs([held])) == {held: Requeued.REQUEUED}
    async with caller.transaction():
        queries = shop.hf.queries.on(caller.joined)
        assert await settled(queries.mark_job_as_cancelled([other], reason="sold out")) == {other}
    found = dict(await shop.hf.queries.job_status([waiting, other, held]))
    assert found == {waiting: Status.QUEUED, other: Status.CANCELED, held: Status.FAILED}


async def test_what_is_read_in_the_transaction_is_as_anywhere_else(
    shop: Shop, caller: Caller
) -> None:
    headers = {"n": [1, None], "50%": "é"}
    [job_id] = await shop.hf.queries.enqueue("ship", b"\0\xff%s", dedupe_key="k", headers=headers)
    held = await _held(shop)
    async with caller.transaction():
        queries = shop.hf.queries.on(caller.joined)
        for name, argument in (("get_jobs", [job_id, held]), ("job_history", held)):
            there = await settled(getattr(queries, name)(argument))
            assert there == await getattr(shop.hf.queries, name)(argument)
        assert await settled(queries.list_failed_jobs()) == await shop.hf.queries.list_failed_jobs()


async def _held(shop: Shop) -> Any:
    """A job that is held, with a history."""
    [job_id] = await shop.hf.queries.enqueue("broken")

    @shop.hf.entrypoint("broken", on_failure="hold")
    async def broken(job: Any) -> None:
        raise ValueError

    await shop.hf.run(mode="drain")
    return job_id


async def test_a_sleeping_worker_wakes_with_the_commit(shop: Shop, caller: Caller) -> None:
    ran = asyncio.Event()

    @shop.hf.entrypoint("ship")
    async def ship(job: Any) -> None:
        ran.set()

    async with asyncio.TaskGroup() as group:
        running = group.create_task(shop.hf.run(dequeue_timeout=timedelta(hours=1)))
        async with asyncio.timeout(PATIENCE):
            async with undone(caller):
                await settled(shop.hf.queries.on(caller.joined).enqueue("ship"))
            async with caller.transaction():
                await settled(shop.hf.queries.on(caller.joined).enqueue("ship"))
                assert not ran.is_set()
            await ran.wait()
        shop.hf.shutdown.set()
        await running


async def test_sync_carriers_give_sync_queries(shop: Shop, caller: Caller) -> None:
    is_sync = isinstance(caller.joined, Session) or type(caller).__name__ == "Synchronous"
    assert isinstance(shop.hf.queries.on(caller.joined), SyncQueries) == is_sync
